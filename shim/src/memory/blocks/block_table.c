#include "memory/blocks/block.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/per_process.h"
#include "base/range_map.h"
#include "host/host_copy.h"
#include "memory/app_mappings/app_mapping_table.h"
#include "memory/blocks/block_internal.h"

OF_PROCESS pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;
static OF_PROCESS struct range_map blocks; /* pointer queries ask for any address inside one */
static _Atomic uint64_t blocks_generation = 1;
static OF_PROCESS _Atomic unsigned sync_memops; /* blocks that have it */

void blocks_changed(void)
{
	atomic_fetch_add(&blocks_generation, 1);
}

static struct block *nth(size_t index)
{
	return blocks.ranges[index].thing;
}

int blocks_insert(struct block *block)
{
	int error;

	pthread_mutex_lock(&blocks_lock);
	error = range_add(&blocks, block->address, block->size, block);
	pthread_mutex_unlock(&blocks_lock);
	blocks_changed();
	return error;
}

struct block *blocks_take(CUdeviceptr address, bool imported)
{
	struct range *range = range_beginning(&blocks, address);
	struct block *block = range ? range->thing : NULL;

	if (!block || block->imported != imported)
		return NULL;
	range_remove(&blocks, range);
	return block;
}

static void describe(const struct block *block, struct block *found)
{
	*found = (struct block){.address = block->address, .size = block->size, .mapped = block->mapped,
				.context = block->context, .id = block->id, .buffer_id = block->id,
				.decompresses = block->context->device->decompresses, .imported = block->imported,
				.sync_memops_off = block->sync_memops_off};
}

/* Return the block that contains `address`; NULL if no block does. Called with the lock held.  */
static struct block *containing(CUdeviceptr address)
{
	const struct range *range = range_first(&blocks, address, 1);

	return range ? range->thing : NULL;
}

bool block_find(CUdeviceptr address, struct block *found)
{
	const struct block *block;

	pthread_mutex_lock(&blocks_lock);
	block = containing(address);
	if (block)
		describe(block, found);
	pthread_mutex_unlock(&blocks_lock);
	return block != NULL;
}

unsigned block_share(CUdeviceptr address, struct block *found, CUmemGenericAllocationHandle handles[BLOCK_PARTS_MAX])
{
	unsigned parts = 0;
	struct block *block;

	pthread_mutex_lock(&blocks_lock);
	block = containing(address);
	if (block && !block->imported) {
		block->shared = true;
		parts = block_parts(block);
		memcpy(handles, block_handles(block), parts * sizeof(handles[0]));
		describe(block, found);
	}
	pthread_mutex_unlock(&blocks_lock);
	blocks_changed();
	return parts;
}

struct block **blocks_list(size_t *count)
{
	size_t mapped = mappings_count();
	struct block **list;

	pthread_mutex_lock(&blocks_lock);
	list = malloc((blocks.count + mapped + 1) * sizeof(*list));
	*count = 0;
	for (size_t i = 0; list && i < blocks.count; i++)
		if (!nth(i)->shared)
			list[(*count)++] = nth(i);
	pthread_mutex_unlock(&blocks_lock);
	if (list)
		*count += mappings_list(list + *count, mapped);
	return list;
}

void blocks_see_retained_copies(void (*see)(struct copy **copy, void *what), void *what)
{
	pthread_mutex_lock(&blocks_lock);
	for (size_t i = 0; i < blocks.count; i++)
		if (nth(i)->resident && !nth(i)->hollow && nth(i)->copy)
			see(&nth(i)->copy, what);
	pthread_mutex_unlock(&blocks_lock);
	mappings_see_retained_copies(see, what);
}

size_t blocks_resident_bytes(void)
{
	size_t bytes = 0;

	pthread_mutex_lock(&blocks_lock);
	for (size_t i = 0; i < blocks.count; i++)
		if (nth(i)->resident && !nth(i)->shared)
			bytes += nth(i)->mapped;
	pthread_mutex_unlock(&blocks_lock);
	return bytes + mappings_resident_bytes();
}

bool blocks_are_in(const struct context *context)
{
	bool any = false;

	pthread_mutex_lock(&blocks_lock);
	for (size_t i = 0; i < blocks.count && !any; i++)
		any = nth(i)->context == context && !nth(i)->shared;
	pthread_mutex_unlock(&blocks_lock);
	return any || mappings_are_in(context);
}

/* The lock under which a block is counted and changed, since the page is written while the mover works.  */
static pthread_mutex_t *lock_of(const struct block *block)
{
	return block->mapping ? &mappings_lock : &blocks_lock;
}

void block_set_resident(struct block *block, bool resident)
{
	pthread_mutex_lock(lock_of(block));
	block->resident = resident;
	pthread_mutex_unlock(lock_of(block));
}

void block_set_parts_left(struct block *block, unsigned parts)
{
	pthread_mutex_lock(&blocks_lock);
	block->parts_left = parts;
	pthread_mutex_unlock(&blocks_lock);
}

void block_set_hollow(struct block *block, bool hollow)
{
	if (block->hollow == hollow)
		return; /* the mover alone changes it */
	pthread_mutex_lock(lock_of(block));
	block->hollow = hollow;
	pthread_mutex_unlock(lock_of(block));
}

void blocks_keep_on_gpu(CUdeviceptr address, size_t size)
{
	struct range *range, *end;

	pthread_mutex_lock(&blocks_lock);
	range = range_first(&blocks, address, size);
	end = blocks.ranges + blocks.count;
	for (; range && range < end && (range->address <= address || range->address - address < size); range++)
		((struct block *)range->thing)->shared = true;
	pthread_mutex_unlock(&blocks_lock);
	blocks_changed();
}

void blocks_set_peers(struct device *owner, uint32_t peers)
{
	uint32_t before;

	pthread_mutex_lock(&blocks_lock);
	before = atomic_exchange(&owner->peers, peers);
	for (size_t i = 0; before != peers && i < blocks.count; i++)
		if (nth(i)->context->device == owner && nth(i)->parts_mapped) {
			block_take_access(nth(i), before & ~peers);
			block_set_access(nth(i), 0);
		}
	pthread_mutex_unlock(&blocks_lock);
}

bool block_set_sync_memops(CUdeviceptr address, bool set)
{
	struct block *block;
	bool ours;

	pthread_mutex_lock(&blocks_lock);
	block = containing(address);
	ours = block != NULL;
	if (ours)
		block->sync_memops_off = !set;
	if (ours && set != block->sync_memops) {
		block->sync_memops = set;
		block->shared = block->shared || set;
		atomic_fetch_add(&sync_memops, set ? 1 : (unsigned)-1);
	}
	pthread_mutex_unlock(&blocks_lock);
	if (ours)
		blocks_changed();
	return ours;
}

bool blocks_have_sync_memops(void)
{
	return atomic_load_explicit(&sync_memops, memory_order_relaxed) != 0;
}

void block_forget_sync_memops(const struct block *block)
{
	if (block->sync_memops)
		atomic_fetch_sub(&sync_memops, 1);
}

struct block *blocks_take_context(CUcontext handle)
{
	struct block *taken = NULL;
	size_t kept = 0;

	for (size_t i = 0; i < blocks.count; i++) {
		if (nth(i)->context->handle == handle) {
			nth(i)->next_doomed = taken;
			taken = nth(i);
		} else {
			blocks.ranges[kept++] = blocks.ranges[i];
		}
	}
	blocks.count = kept;
	return taken;
}

/* Add the bytes of a block that can move.  */
static void add(struct block_bytes *bytes, const struct block *block)
{
	size_t on_gpu = block->resident && !block->hollow ? block->mapped : block_part_begins(block, block->parts_left);

	bytes->resident += on_gpu;
	bytes->parked += block->mapped - on_gpu;
}

bool blocks_sum(struct block_bytes bytes[AFFINODE_MAX_GPUS], uint64_t shared[AFFINODE_MAX_GPUS],
		uint64_t mapped[AFFINODE_MAX_GPUS], uint64_t *generation)
{
	uint64_t now = atomic_load(&blocks_generation);

	if (now == *generation)
		return false;
	*generation = now;
	memset(bytes, 0, AFFINODE_MAX_GPUS * sizeof(bytes[0]));
	memset(shared, 0, AFFINODE_MAX_GPUS * sizeof(shared[0]));
	memset(mapped, 0, AFFINODE_MAX_GPUS * sizeof(mapped[0]));
	pthread_mutex_lock(&blocks_lock);
	for (size_t i = 0; i < blocks.count; i++) {
		int gpu = device_index(nth(i)->context->device);

		if (gpu >= (int)AFFINODE_MAX_GPUS)
			continue;
		if (nth(i)->shared)
			shared[gpu] += nth(i)->mapped;
		else
			add(&bytes[gpu], nth(i));
	}
	pthread_mutex_unlock(&blocks_lock);
	mappings_sum(bytes, shared, mapped);
	return true;
}
