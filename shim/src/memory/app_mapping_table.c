#include "memory/app_mapping_table.h"

#include <stdlib.h>
#include <string.h>

#include "base/growable.h"
#include "base/per_process.h"

/* The driver's handles are small numbers or pointers; ours cannot be mistaken for either.  */
#define HANDLE_BASE 0xaff1000000000000ull

OF_PROCESS pthread_mutex_t mappings_lock = PTHREAD_MUTEX_INITIALIZER;
static CUmemGenericAllocationHandle next_handle = HANDLE_BASE + 1;

/* Chained by handle. Handles are counted up, so their low bits spread them evenly. The first buckets need no memory, and
 * more are only made where there is some: adding never fails.  */
static struct mapping *few_buckets[64], **buckets = few_buckets;
static size_t bucket_count = 64, mapping_count;
static OF_PROCESS struct mapping *mappings;

/* Sorted by address.  */
static OF_PROCESS struct alias **aliases;
static OF_PROCESS size_t alias_count, alias_size;

struct mapping *mappings_first(void)
{
	return mappings;
}

size_t mappings_known(void)
{
	return mapping_count;
}

static struct mapping **bucket_of(CUmemGenericAllocationHandle handle)
{
	return &buckets[handle & (bucket_count - 1)];
}

static void put_in_bucket(struct mapping *mapping)
{
	struct mapping **bucket = bucket_of(mapping->handle);

	mapping->next_in_bucket = *bucket;
	*bucket = mapping;
}

static void make_more_buckets(void)
{
	struct mapping **more = calloc(4 * bucket_count, sizeof(*more));

	if (!more)
		return;
	if (buckets != few_buckets)
		free(buckets);
	buckets = more;
	bucket_count *= 4;
	for (struct mapping *mapping = mappings; mapping; mapping = mapping->next)
		put_in_bucket(mapping);
}

void table_add_mapping(struct mapping *mapping)
{
	if (mapping_count >= bucket_count)
		make_more_buckets();
	mapping->handle = next_handle++;
	put_in_bucket(mapping);
	mapping->previous = NULL;
	mapping->next = mappings;
	if (mappings)
		mappings->previous = mapping;
	mappings = mapping;
	mapping_count++;
}

void table_remove_mapping(struct mapping *mapping)
{
	struct mapping **at = bucket_of(mapping->handle);

	while (*at != mapping)
		at = &(*at)->next_in_bucket;
	*at = mapping->next_in_bucket;
	if (mapping->next)
		mapping->next->previous = mapping->previous;
	if (mapping->previous)
		mapping->previous->next = mapping->next;
	else
		mappings = mapping->next;
	mapping_count--;
}

struct mapping *table_find_handle(CUmemGenericAllocationHandle handle)
{
	struct mapping *mapping;

	if (handle < HANDLE_BASE)
		return NULL;
	mapping = *bucket_of(handle);
	while (mapping && mapping->handle != handle)
		mapping = mapping->next_in_bucket;
	return mapping;
}

/* Index of the first alias that ends after `address`.  */
static size_t first_after(CUdeviceptr address)
{
	size_t low = 0, high = alias_count;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (aliases[middle]->address + aliases[middle]->size <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct alias *table_add_alias(struct mapping *mapping, CUdeviceptr address, size_t size)
{
	size_t at = first_after(address);
	struct alias *alias;

	/* Where one of ours still seems to be, the driver was reached past us: what is not known is left alone.  */
	if (table_first_alias(address, size) || !array_has_room(aliases, alias_count, alias_size))
		return NULL;
	alias = calloc(1, sizeof(*alias));
	if (!alias)
		return NULL;
	alias->address = address;
	alias->size = size;
	alias->mapping = mapping;
	alias->next = mapping->aliases;
	mapping->aliases = alias;
	memmove(aliases + at + 1, aliases + at, (alias_count - at) * sizeof(*aliases));
	aliases[at] = alias;
	alias_count++;
	return alias;
}

void table_remove_alias(struct alias *alias)
{
	struct alias **link = &alias->mapping->aliases;
	size_t at = first_after(alias->address);

	while (*link != alias)
		link = &(*link)->next;
	*link = alias->next;
	memmove(aliases + at, aliases + at + 1, (alias_count - at - 1) * sizeof(*aliases));
	alias_count--;
	free(alias);
}

struct alias *table_first_alias(CUdeviceptr address, size_t size)
{
	size_t at = first_after(address);
	struct alias *alias = at < alias_count ? aliases[at] : NULL;

	return alias && (alias->address <= address || alias->address - address < size) ? alias : NULL;
}

struct alias *table_next_alias(const struct alias *alias, CUdeviceptr address, size_t size)
{
	CUdeviceptr end = alias->address + alias->size;

	return end - address < size ? table_first_alias(end, size - (end - address)) : NULL;
}

struct alias *table_find_alias(CUdeviceptr address)
{
	return table_first_alias(address, 1);
}

void mappings_begin_again(void)
{
	memset(few_buckets, 0, sizeof(few_buckets));
	buckets = few_buckets;
	bucket_count = sizeof(few_buckets) / sizeof(few_buckets[0]);
	mapping_count = 0;
}
