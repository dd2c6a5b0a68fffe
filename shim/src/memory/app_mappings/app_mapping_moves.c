/* What the mover does with the application's own mappings, all of them: see app_mappings.h.  */
#include "base/log.h"
#include "driver/real_driver.h"
#include "host/host_copy.h"
#include "memory/app_mappings/app_mapping_table.h"

static bool can_move(const struct mapping *mapping)
{
	return !mapping->block.shared && mapping->block.context->handle && mapping->block.address;
}

static CUresult map_alias(const struct mapping *mapping, struct alias *alias)
{
	CUresult result = alias->in_place
				  ? CUDA_SUCCESS
				  : driver.cuMemMap(alias->address, alias->size, 0, mapping->block.handle, 0);

	if (result != CUDA_SUCCESS)
		return result;
	alias->in_place = true;
	return alias->access_count
		       ? driver.cuMemSetAccess(alias->address, alias->size, alias->access, alias->access_count)
		       : CUDA_SUCCESS;
}

CUresult mapping_map(struct mapping *mapping)
{
	for (struct alias *alias = mapping->aliases; alias; alias = alias->next) {
		CUresult result = map_alias(mapping, alias);

		if (result != CUDA_SUCCESS)
			return result;
	}
	return CUDA_SUCCESS;
}

CUresult alias_unmap(struct alias *alias)
{
	CUresult result = alias->in_place ? driver.cuMemUnmap(alias->address, alias->size) : CUDA_SUCCESS;

	alias->in_place = alias->in_place && result != CUDA_SUCCESS;
	return result;
}

CUresult mapping_unmap_all(struct mapping *mapping)
{
	CUresult result = CUDA_SUCCESS;

	for (struct alias *alias = mapping->aliases; alias && result == CUDA_SUCCESS; alias = alias->next)
		result = alias_unmap(alias);
	return result;
}

void mappings_choose_contexts(void)
{
	struct mapping *mapping;

	pthread_mutex_lock(&mappings_lock);
	for (size_t i = 0; (mapping = mappings_nth(i)); i++) {
		struct context *context = mapping->block.context;

		if (!context->handle)
			context = context_to_copy_in(context->device);
		if (context)
			mapping->block.context = context;
	}
	pthread_mutex_unlock(&mappings_lock);
}

size_t mappings_count(void)
{
	size_t count = 0;

	pthread_mutex_lock(&mappings_lock);
	while (mappings_nth(count))
		count++;
	pthread_mutex_unlock(&mappings_lock);
	return count;
}

size_t mappings_list(struct block **list, size_t room)
{
	size_t count = 0;
	struct mapping *mapping;

	pthread_mutex_lock(&mappings_lock);
	for (size_t i = 0; (mapping = mappings_nth(i)) && count < room; i++)
		if (can_move(mapping) || !mapping->block.resident || mapping->block.hollow)
			list[count++] = &mapping->block;
	pthread_mutex_unlock(&mappings_lock);
	return count;
}

void mappings_see_retained_copies(void (*see)(struct copy **copy, void *what), void *what)
{
	struct mapping *mapping;

	pthread_mutex_lock(&mappings_lock);
	for (size_t i = 0; (mapping = mappings_nth(i)); i++)
		if (mapping->block.resident && !mapping->block.hollow && mapping->block.copy)
			see(&mapping->block.copy, what);
	pthread_mutex_unlock(&mappings_lock);
}

bool mappings_are_in(const struct context *context)
{
	bool any = false;
	struct mapping *mapping;

	pthread_mutex_lock(&mappings_lock);
	for (size_t i = 0; (mapping = mappings_nth(i)) && !any; i++)
		any = mapping->block.context == context && can_move(mapping);
	pthread_mutex_unlock(&mappings_lock);
	return any;
}

size_t mappings_resident_bytes(void)
{
	size_t bytes = 0;
	struct mapping *mapping;

	pthread_mutex_lock(&mappings_lock);
	for (size_t i = 0; (mapping = mappings_nth(i)); i++)
		if (mapping->block.resident && can_move(mapping))
			bytes += mapping->block.mapped;
	pthread_mutex_unlock(&mappings_lock);
	return bytes;
}

void mappings_sum(struct block_bytes bytes[AFFINODE_MAX_GPUS], uint64_t shared[AFFINODE_MAX_GPUS],
		  uint64_t unmovable[AFFINODE_MAX_GPUS])
{
	struct mapping *mapping;

	pthread_mutex_lock(&mappings_lock);
	for (size_t i = 0; (mapping = mappings_nth(i)); i++) {
		int gpu = device_index(mapping->block.context->device);

		if (gpu >= (int)AFFINODE_MAX_GPUS)
			continue;
		if (!mapping->block.resident || mapping->block.hollow)
			bytes[gpu].parked += mapping->block.mapped;
		else if (can_move(mapping))
			bytes[gpu].resident += mapping->block.mapped;
		else if (mapping->block.shared)
			shared[gpu] += mapping->block.mapped;
		else
			unmovable[gpu] += mapping->block.mapped;
	}
	pthread_mutex_unlock(&mappings_lock);
}
