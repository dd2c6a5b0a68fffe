#include "memory/app_mappings/app_mapping_table.h"

#include <stdlib.h>

#include "base/per_process.h"
#include "base/range_map.h"

/* The driver's handles are small numbers or pointers; ours cannot be mistaken for either.  */
#define HANDLE_BASE 0xaff1000000000000ull

OF_PROCESS pthread_mutex_t mappings_lock = PTHREAD_MUTEX_INITIALIZER;
static CUmemGenericAllocationHandle next_handle = HANDLE_BASE + 1;

static OF_PROCESS struct range_map handles, aliases;

struct mapping *mappings_nth(size_t n)
{
	return n < handles.count ? handles.ranges[n].thing : NULL;
}

int table_add_mapping(struct mapping *mapping)
{
	mapping->handle = next_handle++;
	return range_add(&handles, mapping->handle, 1, mapping);
}

void table_remove_mapping(struct mapping *mapping)
{
	range_remove(&handles, range_beginning(&handles, mapping->handle));
}

struct mapping *table_find_handle(CUmemGenericAllocationHandle handle)
{
	const struct range *range = range_beginning(&handles, handle);

	return range ? range->thing : NULL;
}

struct alias *table_add_alias(struct mapping *mapping, CUdeviceptr address, size_t size)
{
	struct alias *alias;

	/* Where one of ours still seems to be, the driver was reached past us: what is not known is left alone.  */
	if (table_first_alias(address, size))
		return NULL;
	alias = calloc(1, sizeof(*alias));
	if (!alias || range_add(&aliases, address, size, alias) != 0) {
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
