#include "mappings.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "driver.h"
#include "log.h"
#include "shim.h"

/* The driver's handles are small numbers or pointers; ours cannot be mistaken for either.  */
#define HANDLE_BASE 0xaff1000000000000ull

static pthread_mutex_t mappings_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mapping *mappings;
static CUmemGenericAllocationHandle next_handle = HANDLE_BASE + 1;

static struct mapping *find_handle(CUmemGenericAllocationHandle handle)
{
	struct mapping *mapping = mappings;

	if (handle < HANDLE_BASE)
		return NULL;
	while (mapping && mapping->handle != handle)
		mapping = mapping->next;
	return mapping;
}

static struct alias *find_alias(CUdeviceptr address, struct mapping **owner)
{
	for (struct mapping *mapping = mappings; mapping; mapping = mapping->next)
		for (unsigned i = 0; i < mapping->alias_count; i++)
			if (address - mapping->aliases[i].address < mapping->aliases[i].size) {
				*owner = mapping;
				return &mapping->aliases[i];
			}
	return NULL;
}

/* An alias, other than `except`, that the mover can copy all of the contents through: whole, and its own device allowed
 * there. NULL: none.  */
static const struct alias *copyable(const struct mapping *mapping, const struct alias *except)
{
	for (const struct alias *alias = mapping->aliases; alias < mapping->aliases + mapping->alias_count; alias++) {
		if (alias == except || alias->size != mapping->block.size)
			continue;
		for (unsigned i = 0; i < alias->access_count; i++)
			if (alias->access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
			    alias->access[i].location.id == mapping->prop.location.id &&
			    alias->access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
				return alias;
	}
	return NULL;
}

static bool can_move(const struct mapping *mapping)
{
	return !mapping->block.shared && mapping->block.context->handle && copyable(mapping, NULL);
}

/* Where the mover copies.  */
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

	if (!context || !context->device->can_map || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop->location.id != context->device->ordinal)
		return real;
	mapping = calloc(1, sizeof(*mapping));
	if (!mapping)
		return real;
	context_make_ready(context);
	mapping->prop = *prop;
	mapping->references = 1;
	mapping->block = (struct block){.size = size, .mapped = size, .context = context, .handle = real,
					.resident = true, .mapping = mapping};
	pthread_mutex_lock(&mappings_lock);
	mapping->handle = next_handle++;
	mapping->block.id = mapping->handle;
	mapping->next = mappings;
	mappings = mapping;
	pthread_mutex_unlock(&mappings_lock);
	blocks_changed();
	return mapping->handle;
}

CUmemGenericAllocationHandle mapping_real_handle(CUmemGenericAllocationHandle handle, bool share)
{
	struct mapping *mapping;

	pthread_mutex_lock(&mappings_lock);
	mapping = find_handle(handle);
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
	mapping = find_handle(handle);
	if (mapping)
		*prop = mapping->prop;
	pthread_mutex_unlock(&mappings_lock);
	return mapping != NULL;
}

/* With the lock held; NULL: no memory.  */
static struct alias *add_alias(struct mapping *mapping, CUdeviceptr address, size_t size)
{
	if (mapping->alias_count == mapping->alias_size) {
		unsigned room = mapping->alias_size ? 2 * mapping->alias_size : 2;
		struct alias *more = realloc(mapping->aliases, room * sizeof(*more));

		if (!more)
			return NULL;
		mapping->aliases = more;
		mapping->alias_size = room;
	}
	struct alias *alias = &mapping->aliases[mapping->alias_count++];
	memset(alias, 0, sizeof(*alias));
	alias->address = address;
	alias->size = size;
	return alias;
}

void mapping_mapped(CUmemGenericAllocationHandle handle, CUdeviceptr address, size_t size)
{
	struct mapping *mapping;

	pthread_mutex_lock(&mappings_lock);
	mapping = find_handle(handle);
	if (mapping && !add_alias(mapping, address, size))
		mapping->block.shared = true; /* cannot be remembered, so it cannot be replaced */
	pthread_mutex_unlock(&mappings_lock);
	blocks_changed();
}

static void add_access(struct mapping *mapping, struct alias *alias, const CUmemAccessDesc *access)
{
	unsigned i = 0;

	while (i < alias->access_count &&
	       memcmp(&alias->access[i].location, &access->location, sizeof(access->location)) != 0)
		i++;
	if (i < sizeof(alias->access) / sizeof(alias->access[0])) {
		alias->access[i] = *access;
		alias->access_count += i == alias->access_count;
	} else {
		mapping->block.shared = true;
	}
	choose_address(mapping);
}

void mapping_set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count)
{
	pthread_mutex_lock(&mappings_lock);
	for (struct mapping *mapping = mappings; mapping; mapping = mapping->next)
		for (unsigned i = 0; i < mapping->alias_count; i++)
			if (mapping->aliases[i].address >= address && mapping->aliases[i].address - address < size)
				for (size_t n = 0; n < count; n++)
					add_access(mapping, &mapping->aliases[i], &access[n]);
	pthread_mutex_unlock(&mappings_lock);
	blocks_changed();
}

CUmemGenericAllocationHandle mapping_retain(CUdeviceptr address)
{
	CUmemGenericAllocationHandle handle = 0;
	struct mapping *mapping;

	pthread_mutex_lock(&mappings_lock);
	if (find_alias(address, &mapping)) {
		mapping->references++;
		handle = mapping->handle;
	}
	pthread_mutex_unlock(&mappings_lock);
	return handle;
}

static void forget(struct mapping *mapping)
{
	struct mapping **at = &mappings;

	while (*at != mapping)
		at = &(*at)->next;
	*at = mapping->next;
	for (unsigned i = 0; i < mapping->alias_count; i++)
		if (mapping->aliases[i].ours)
			driver.cuMemAddressFree(mapping->aliases[i].address, mapping->aliases[i].size);
	free(mapping->aliases);
	free(mapping);
}

static bool only_ours(const struct mapping *mapping)
{
	for (unsigned i = 0; i < mapping->alias_count; i++)
		if (!mapping->aliases[i].ours)
			return false;
	return true;
}

/* Nobody can reach it any more: let the physical memory and the copy go. With the lock held.  */
static CUresult end(struct mapping *mapping)
{
	CUresult result = CUDA_SUCCESS;

	if (mapping->block.resident) {
		for (unsigned i = 0; i < mapping->alias_count; i++)
			driver.cuMemUnmap(mapping->aliases[i].address, mapping->aliases[i].size);
		result = driver.cuMemRelease(mapping->block.handle);
	} else if (mapping->block.host) {
		madvise(mapping->block.host, mapping->block.mapped, MADV_DONTNEED);
	}
	forget(mapping);
	return result;
}

bool mapping_release(CUmemGenericAllocationHandle handle, CUresult *result)
{
	struct mapping *mapping;

	pthread_mutex_lock(&mappings_lock);
	mapping = find_handle(handle);
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

/* The application unmaps parked contents that it can still reach, by a handle or at another address that nothing may
 * access yet. They keep an address of our own so that a resume has somewhere to copy to. With the lock held.  */
static bool keep_reachable(struct mapping *mapping)
{
	CUmemAccessDesc access = {mapping->prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr address;
	struct alias *alias;

	if (driver.cuMemAddressReserve(&address, mapping->block.size, 0, 0, 0) != CUDA_SUCCESS)
		return false;
	alias = add_alias(mapping, address, mapping->block.size);
	if (!alias) {
		driver.cuMemAddressFree(address, mapping->block.size);
		return false;
	}
	alias->ours = true;
	add_access(mapping, alias, &access);
	return true;
}

static CUresult drop_alias(struct mapping *mapping, unsigned index)
{
	struct alias alias = mapping->aliases[index];
	CUresult result = CUDA_SUCCESS;

	if (!mapping->block.resident && (mapping->references > 0 || mapping->alias_count > 1) &&
	    !copyable(mapping, &mapping->aliases[index]) && !keep_reachable(mapping))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (mapping->block.resident)
		result = driver.cuMemUnmap(alias.address, alias.size);
	if (result != CUDA_SUCCESS)
		return result;
	memmove(&mapping->aliases[index], &mapping->aliases[index + 1],
		(mapping->alias_count - index - 1) * sizeof(alias));
	mapping->alias_count--;
	choose_address(mapping);
	if (mapping->references == 0 && only_ours(mapping))
		return end(mapping);
	return CUDA_SUCCESS;
}

/* The first alias that lies wholly in the range: its mapping, and its index there. NULL: none. With the lock held.  */
static struct mapping *alias_within(CUdeviceptr address, size_t size, unsigned *index)
{
	for (struct mapping *mapping = mappings; mapping; mapping = mapping->next)
		for (unsigned i = 0; i < mapping->alias_count; i++) {
			const struct alias *alias = &mapping->aliases[i];

			if (alias->address >= address && alias->address - address < size &&
			    size - (alias->address - address) >= alias->size) {
				*index = i;
				return mapping;
			}
		}
	return NULL;
}

bool mapping_unmap(CUdeviceptr address, size_t size, CUresult *result)
{
	struct mapping *mapping;
	bool ours = false;
	unsigned index;

	*result = CUDA_SUCCESS;
	pthread_mutex_lock(&mappings_lock);
	/* Looked for anew each time: dropping the last alias frees the mapping.  */
	while (*result == CUDA_SUCCESS && (mapping = alias_within(address, size, &index)) != NULL) {
		*result = drop_alias(mapping, index);
		ours = true;
	}
	pthread_mutex_unlock(&mappings_lock);
	blocks_changed();
	return ours;
}

bool mapping_find_parked(CUdeviceptr address, struct block *found)
{
	struct mapping *mapping;
	struct alias *alias;
	bool parked = false;

	pthread_mutex_lock(&mappings_lock);
	alias = find_alias(address, &mapping);
	if (alias && !mapping->block.resident) {
		*found = (struct block){.address = alias->address, .size = alias->size, .mapped = alias->size,
					.context = mapping->block.context, .id = mapping->block.id};
		parked = true;
	}
	pthread_mutex_unlock(&mappings_lock);
	return parked;
}

bool mapping_parked_access(CUdeviceptr address, const CUmemLocation *location, unsigned long long *flags)
{
	struct mapping *mapping;
	struct alias *alias;
	bool parked = false;

	pthread_mutex_lock(&mappings_lock);
	alias = find_alias(address, &mapping);
	if (alias && !mapping->block.resident) {
		parked = true;
		*flags = 0;
		for (unsigned i = 0; i < alias->access_count; i++)
			if (alias->access[i].location.type == location->type &&
			    alias->access[i].location.id == location->id)
				*flags = (unsigned long long)alias->access[i].flags;
	}
	pthread_mutex_unlock(&mappings_lock);
	return parked;
}

static CUresult map_alias(const struct mapping *mapping, const struct alias *alias)
{
	CUresult result = driver.cuMemMap(alias->address, alias->size, 0, mapping->block.handle, 0);

	if (result == CUDA_SUCCESS && alias->access_count) {
		result = driver.cuMemSetAccess(alias->address, alias->size, alias->access, alias->access_count);
		if (result != CUDA_SUCCESS)
			driver.cuMemUnmap(alias->address, alias->size);
	}
	return result;
}

CUresult mapping_map(struct mapping *mapping)
{
	CUresult result = CUDA_SUCCESS;
	unsigned i;

	for (i = 0; i < mapping->alias_count && result == CUDA_SUCCESS; i++)
		result = map_alias(mapping, &mapping->aliases[i]);
	if (result != CUDA_SUCCESS)
		for (unsigned n = 0; n + 1 < i; n++)
			driver.cuMemUnmap(mapping->aliases[n].address, mapping->aliases[n].size);
	return result;
}

/* All or nothing: an alias that will not go brings those before it back.  */
CUresult mapping_unmap_all(struct mapping *mapping)
{
	for (unsigned i = 0; i < mapping->alias_count; i++) {
		CUresult result = driver.cuMemUnmap(mapping->aliases[i].address, mapping->aliases[i].size);

		if (result == CUDA_SUCCESS)
			continue;
		for (unsigned n = 0; n < i; n++)
			if (map_alias(mapping, &mapping->aliases[n]) != CUDA_SUCCESS)
				log_line("an alias could not be mapped back at %llx", mapping->aliases[n].address);
		return result;
	}
	return CUDA_SUCCESS;
}

void mappings_choose_contexts(void)
{
	pthread_mutex_lock(&mappings_lock);
	for (struct mapping *mapping = mappings; mapping; mapping = mapping->next) {
		struct context *context = mapping->block.context;

		if (!context->handle)
			context = context_to_copy_in(context->device);
		if (context)
			mapping->block.context = context;
	}
	pthread_mutex_unlock(&mappings_lock);
}

void mapping_set_resident(struct mapping *mapping, bool resident)
{
	pthread_mutex_lock(&mappings_lock);
	mapping->block.resident = resident;
	pthread_mutex_unlock(&mappings_lock);
}

size_t mappings_count(void)
{
	size_t count = 0;

	pthread_mutex_lock(&mappings_lock);
	for (struct mapping *mapping = mappings; mapping; mapping = mapping->next)
		count++;
	pthread_mutex_unlock(&mappings_lock);
	return count;
}

size_t mappings_list(struct block **list, size_t room)
{
	size_t count = 0;

	pthread_mutex_lock(&mappings_lock);
	for (struct mapping *mapping = mappings; mapping && count < room; mapping = mapping->next)
		if (can_move(mapping) || !mapping->block.resident)
			list[count++] = &mapping->block;
	pthread_mutex_unlock(&mappings_lock);
	return count;
}

size_t mappings_resident_bytes(void)
{
	size_t bytes = 0;

	pthread_mutex_lock(&mappings_lock);
	for (struct mapping *mapping = mappings; mapping; mapping = mapping->next)
		if (mapping->block.resident && can_move(mapping))
			bytes += mapping->block.mapped;
	pthread_mutex_unlock(&mappings_lock);
	return bytes;
}

void mappings_keep_on_gpu(CUdeviceptr address, size_t size)
{
	pthread_mutex_lock(&mappings_lock);
	for (struct mapping *mapping = mappings; mapping; mapping = mapping->next)
		for (unsigned i = 0; i < mapping->alias_count; i++)
			if (mapping->aliases[i].address < address + size &&
			    address < mapping->aliases[i].address + mapping->aliases[i].size)
				mapping->block.shared = true;
	pthread_mutex_unlock(&mappings_lock);
	blocks_changed();
}

void mappings_sum(struct block_bytes bytes[AFFINODE_MAX_GPUS], uint64_t shared[AFFINODE_MAX_GPUS],
		  uint64_t fixed[AFFINODE_MAX_GPUS])
{
	pthread_mutex_lock(&mappings_lock);
	for (struct mapping *mapping = mappings; mapping; mapping = mapping->next) {
		int gpu = device_index(mapping->block.context->device);

		if (gpu >= (int)AFFINODE_MAX_GPUS)
			continue;
		if (!mapping->block.resident)
			bytes[gpu].parked += mapping->block.mapped;
		else if (can_move(mapping))
			bytes[gpu].resident += mapping->block.mapped;
		else if (mapping->block.shared)
			shared[gpu] += mapping->block.mapped;
		else
			fixed[gpu] += mapping->block.mapped;
	}
	pthread_mutex_unlock(&mappings_lock);
}

void mappings_reset_in_child(void)
{
	pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

	memcpy(&mappings_lock, &fresh, sizeof(fresh));
	mappings = NULL;
}
