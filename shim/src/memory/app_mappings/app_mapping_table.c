#include "memory/app_mappings/app_mapping_table.h"

#include <stdlib.h>
#include <string.h>

#include "base/per_process.h"
#include "base/range_map.h"

/* The driver's handles are small numbers or pointers; ours cannot be mistaken for either.  */
#define HANDLE_BASE 0xaff1000000000000ull

OF_PROCESS pthread_mutex_t mappings_lock = PTHREAD_MUTEX_INITIALIZER;
static CUmemGenericAllocationHandle next_handle = HANDLE_BASE + 1;

/* Chained by handle. Handles are counted up, so their low bits spread them evenly. The first buckets need no memory, and
 * more are only made where there is some: adding never fails.  */
static struct mapping *few_buckets[64], **buckets = few_buckets;
static size_t bucket_count = 64, mapping_count;
static OF_PROCESS struct mapping *mappings;

static OF_PROCESS struct range_map aliases;

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

struct alias *table_add_alias(struct mapping *mapping, CUdeviceptr address, size_t size)
{
	struct alias *alias;

	/* Where one of ours still seems to be, the driver was reached past us: what is not known is left alone.  */
	if (table_first_alias(address, size))
		return NULL;
	alias = calloc(1, sizeof(*alias));
	if (!alias || !range_add(&aliases, address, size, alias)) {
		free(alias);
		return NULL;
	}
	alias->address = address;
	alias->size = size;
	alias->mapping = mapping;
	alias->next = mapping->aliases;
	mapping->aliases = alias;
	return alias;
}

void table_remove_alias(struct alias *alias)
{
	struct alias **link = &alias->mapping->aliases;

	while (*link != alias)
		link = &(*link)->next;
	*link = alias->next;
	range_remove(&aliases, range_beginning(&aliases, alias->address));
	free(alias);
}

struct alias *table_first_alias(CUdeviceptr address, size_t size)
{
	const struct range *range = range_first(&aliases, address, size);

	return range ? range->thing : NULL;
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
