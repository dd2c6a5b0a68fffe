#include "memory/app_mappings/app_mappings.h"

#include <stdlib.h>
#include <string.h>

#include "driver/real_driver.h"
#include "host/host_copy.h"
#include "memory/app_mappings/app_mapping_table.h"
#include "state/shim_state.h"

/* Return whether the mover can copy all of the contents through the alias: it covers them, and their own device may reach it.  */
static bool is_copyable(const struct alias *alias)
{
	const struct mapping *mapping = alias->mapping;

	if (alias->size != mapping->block.size)
		return false;
	for (unsigned i = 0; i < alias->access_count; i++)
		if (alias->access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
		    alias->access[i].location.id == mapping->prop.location.id &&
		    alias->access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			return true;
	return false;
}

/* Return an alias other than `except` that the mover can copy through; NULL if there is none.  */
static const struct alias *copyable(const struct mapping *mapping, const struct alias *except)
{
	const struct alias *alias = mapping->aliases;

	while (alias && (alias == except || !is_copyable(alias)))
		alias = alias->next;
	return alias;
}

/* Choose the address at which the mover copies.  */
static void choose_address(struct mapping *mapping)
{
	const struct alias *alias = copyable(mapping, NULL);

	mapping->block.address = alias ? alias->address : 0;
}

CUmemGenericAllocationHandle mapping_adopt(CUmemGenericAllocationHandle real, size_t size,
					   const CUmemAllocationProp *prop)
{
	struct context *context = context_current();
	struct mapping *mapping;

	/* A tile pool's handle goes to sparse arrays alone, in a list that we do not read.  */
	if (!context || !context->device->can_map || (prop->allocFlags.usage & ~CU_MEM_CREATE_USAGE_HW_DECOMPRESS) ||
	    prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop->location.id != context->device->ordinal)
		return real;
	mapping = calloc(1, sizeof(*mapping));
	if (!mapping)
		return real;
	context_make_ready(context);
	mapping->prop = *prop;
	mapping->references = 1;
	mapping->block = (struct block){.size = size, .mapped = size, .context = context, .handle = real,
					.part_bytes = size, .resident = true, .parts_created = 1,
					.mapping = mapping, .id = block_new_id()};
	pthread_mutex_lock(&mappings_lock);
	if (table_add_mapping(mapping) == 0)
		real = mapping->handle;
	else
		free(mapping);
	pthread_mutex_unlock(&mappings_lock);
	blocks_changed();
	return real;
}

CUmemGenericAllocationHandle mapping_real_handle(CUmemGenericAllocationHandle handle, bool share)
{
	struct mapping *mapping;

	pthread_mutex_lock(&mappings_lock);
	mapping = table_find_handle(handle);
	if (mapping) {
		mapping->block.shared = mapping->block.shared || share;
		handle = mapping->block.handle;
	}
	pthread_mutex_unlock(&mappings_lock);
	if (share)
		blocks_changed();
	return handle;
}

bool mapping_properties(CUmemGenericAllocationHandle handle, CUmemAllocationProp *prop)
{
	struct mapping *mapping;

	pthread_mutex_lock(&mappings_lock);
	mapping = table_find_handle(handle);
	if (mapping)
		*prop = mapping->prop;
	pthread_mutex_unlock(&mappings_lock);
	return mapping != NULL;
}

void mapping_mapped(CUmemGenericAllocationHandle handle, CUdeviceptr address, size_t size)
{
	struct mapping *mapping;
	struct alias *alias;

	pthread_mutex_lock(&mappings_lock);
	mapping = table_find_handle(handle);
	alias = mapping ? table_add_alias(mapping, address, size) : NULL;
	if (alias) {
		alias->in_place = true;
		alias->id = block_new_id();
	} else if (mapping) {
		mapping->block.shared = true; /* cannot be remembered, so it cannot be replaced */
	}
	pthread_mutex_unlock(&mappings_lock);
	blocks_changed();
}

static void add_access(struct alias *alias, const CUmemAccessDesc *access)
{
	unsigned i = 0;

	while (i < alias->access_count &&
	       memcmp(&alias->access[i].location, &access->location, sizeof(access->location)) != 0)
		i++;
	if (i < sizeof(alias->access) / sizeof(alias->access[0])) {
		alias->access[i] = *access;
		alias->access_count += i == alias->access_count;
	} else {
		alias->mapping->block.shared = true;
	}
	choose_address(alias->mapping);
}

void mapping_set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count)
{
	struct alias *alias;

	pthread_mutex_lock(&mappings_lock);
	for (alias = table_first_alias(address, size); alias; alias = table_next_alias(alias, address, size))
		for (size_t n = 0; n < count; n++)
			add_access(alias, &access[n]);
	pthread_mutex_unlock(&mappings_lock);
	blocks_changed();
}

void mappings_keep_on_gpu(CUdeviceptr address, size_t size)
{
	struct alias *alias;

	pthread_mutex_lock(&mappings_lock);
	for (alias = table_first_alias(address, size); alias; alias = table_next_alias(alias, address, size))
		alias->mapping->block.shared = true;
	pthread_mutex_unlock(&mappings_lock);
	blocks_changed();
}

CUmemGenericAllocationHandle mapping_retain(CUdeviceptr address)
{
	CUmemGenericAllocationHandle handle = 0;
	struct alias *alias;

	pthread_mutex_lock(&mappings_lock);
	alias = table_find_alias(address);
	if (alias) {
		alias->mapping->references++;
		handle = alias->mapping->handle;
	}
	pthread_mutex_unlock(&mappings_lock);
	return handle;
}

static void forget(struct mapping *mapping)
{
	while (mapping->aliases) {
		if (mapping->aliases->ours)
			driver.cuMemAddressFree(mapping->aliases->address, mapping->aliases->size);
		table_remove_alias(mapping->aliases);
	}
	table_remove_mapping(mapping);
	free(mapping);
}

static bool only_ours(const struct mapping *mapping)
{
	const struct alias *alias = mapping->aliases;

	while (alias && alias->ours)
		alias = alias->next;
	return !alias;
}

/* End a mapping that nothing can reach any more: release the physical memory and the copy. Called with the lock held.  */
static CUresult end(struct mapping *mapping)
{
	CUresult result = CUDA_SUCCESS;

	if (mapping->block.resident) {
		mapping_unmap_all(mapping);
		result = driver.cuMemRelease(mapping->block.handle);
	}
	copy_drop(mapping->block.copy);
	forget(mapping);
	return result;
}

bool mapping_release(CUmemGenericAllocationHandle handle, CUresult *result)
{
	struct mapping *mapping;

	pthread_mutex_lock(&mappings_lock);
	mapping = table_find_handle(handle);
	if (mapping && mapping->references == 0) {
		*result = CUDA_ERROR_INVALID_VALUE;
	} else if (mapping) {
		mapping->references--;
		*result = CUDA_SUCCESS;
		/* While it is mapped it lives on without a reference, and we keep the driver's handle to it.  */
		if (mapping->references == 0 && only_ours(mapping))
			*result = end(mapping);
	}
	pthread_mutex_unlock(&mappings_lock);
	blocks_changed();
	return mapping != NULL;
}

/* Reserve an address for parked contents that the application unmaps but can still reach, by a handle or at another address
 * that nothing may access yet: a resume needs an address to copy to. Called with the lock held.  */
static bool keep_reachable(struct mapping *mapping)
{
	CUmemAccessDesc access = {mapping->prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr address;
	struct alias *alias;

	if (driver.cuMemAddressReserve(&address, mapping->block.size, 0, 0, 0) != CUDA_SUCCESS)
		return false;
	alias = table_add_alias(mapping, address, mapping->block.size);
	if (!alias) {
		driver.cuMemAddressFree(address, mapping->block.size);
		return false;
	}
	alias->ours = true;
	add_access(alias, &access);
	return true;
}

static CUresult drop_alias(struct alias *alias)
{
	struct mapping *mapping = alias->mapping;
	bool only = mapping->aliases == alias && !alias->next;
	CUresult result = CUDA_SUCCESS;

	if ((!mapping->block.resident || mapping->block.hollow) && (mapping->references > 0 || !only) &&
	    !copyable(mapping, alias) && !keep_reachable(mapping))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = alias_unmap(alias);
	if (result != CUDA_SUCCESS)
		return result;
	table_remove_alias(alias);
	choose_address(mapping);
	if (mapping->references == 0 && only_ours(mapping))
		return end(mapping);
	return CUDA_SUCCESS;
}

/* Return whether an alias lies only partly in the range: the driver does not unmap such a range.  */
static bool cuts_an_alias(CUdeviceptr address, size_t size)
{
	const struct alias *first = table_find_alias(address), *last = table_find_alias(address + size - 1);

	return (first && first->address != address) || (last && last->address + last->size != address + size);
}

bool mapping_unmap(CUdeviceptr address, size_t size, CUresult *result)
{
	size_t unmapped = 0;
	struct alias *alias;

	*result = CUDA_SUCCESS;
	if (!size)
		return false;
	pthread_mutex_lock(&mappings_lock);
	if (cuts_an_alias(address, size))
		*result = CUDA_ERROR_INVALID_VALUE;
	/* Looked for anew each time: dropping the last alias frees the mapping.  */
	while (*result == CUDA_SUCCESS && (alias = table_first_alias(address, size)) != NULL) {
		unmapped += alias->size;
		*result = drop_alias(alias);
	}
	pthread_mutex_unlock(&mappings_lock);
	blocks_changed();
	return *result != CUDA_SUCCESS || unmapped == size;
}

bool mapping_find(CUdeviceptr address, struct block *found)
{
	const struct mapping *mapping;
	struct alias *alias;

	pthread_mutex_lock(&mappings_lock);
	alias = table_find_alias(address);
	if (alias) {
		mapping = alias->mapping;
		*found = (struct block){.address = alias->address, .size = alias->size, .mapped = alias->size,
					.context = mapping->block.context, .id = mapping->block.id, .buffer_id = alias->id,
					.decompresses = mapping->prop.allocFlags.usage & CU_MEM_CREATE_USAGE_HW_DECOMPRESS,
					.resident = mapping->block.resident, .mapping = alias->mapping};
	}
	pthread_mutex_unlock(&mappings_lock);
	return alias != NULL;
}

bool mapping_parked_access(CUdeviceptr address, const CUmemLocation *location, unsigned long long *flags)
{
	struct alias *alias;
	bool parked;

	pthread_mutex_lock(&mappings_lock);
	alias = table_find_alias(address);
	parked = alias && !alias->mapping->block.resident;
	if (parked) {
		*flags = 0;
		for (unsigned i = 0; i < alias->access_count; i++)
			if (alias->access[i].location.type == location->type &&
			    alias->access[i].location.id == location->id)
				*flags = (unsigned long long)alias->access[i].flags;
	}
	pthread_mutex_unlock(&mappings_lock);
	return parked;
}
