#include "memory/backed.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/per_process.h"
#include "host/host_copy.h"
#include "memory/app_mappings.h"
#include "memory/backed_internal.h"

/* The table is sorted by address: pointer queries ask for any address inside a block.  */
OF_PROCESS pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;
static OF_PROCESS struct block **blocks;
static OF_PROCESS size_t blocks_count, blocks_size;
static _Atomic uint64_t blocks_generation = 1;
static OF_PROCESS _Atomic unsigned sync_memops; /* blocks that have it */

void blocks_changed(void)
{
	atomic_fetch_add(&blocks_generation, 1);
}

/* Index of the first block that begins after `address`.  */
static size_t upper_bound(CUdeviceptr address)
{
	size_t low = 0, high = blocks_count;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (blocks[middle]->address <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

bool blocks_insert(struct block *block)
{
	size_t at;
	bool room = true;

	pthread_mutex_lock(&blocks_lock);
	if (blocks_count == blocks_size) {
		size_t size = blocks_size ? 2 * blocks_size : 256;
		struct block **more = realloc(blocks, size * sizeof(*more));

		room = more != NULL;
		if (room) {
			blocks = more;
			blocks_size = size;
		}
	}
	if (room) {
		at = upper_bound(block->address);
		memmove(blocks + at + 1, blocks + at, (blocks_count - at) * sizeof(*blocks));
		blocks[at] = block;
		blocks_count++;
	}
	pthread_mutex_unlock(&blocks_lock);
	blocks_changed();
	return room;
}

struct block *blocks_take(CUdeviceptr address, bool imported)
{
	struct block *block;
	size_t at = upper_bound(address);

	if (at == 0 || blocks[at - 1]->address != address || blocks[at - 1]->imported != imported)
		return NULL;
	block = blocks[at - 1];
	memmove(blocks + at - 1, blocks + at, (blocks_count - at) * sizeof(*blocks));
	blocks_count--;
	return block;
}

static void describe(const struct block *block, struct block *found)
{
	*found = (struct block){.address = block->address, .size = block->size, .mapped = block->mapped,
				.context = block->context, .id = block->id, .buffer_id = block->id,
				.decompresses = block->context->device->decompresses, .imported = block->imported,
				.sync_memops_off = block->sync_memops_off};
}

/* The block that contains `address`; NULL: not ours. With the lock held.  */
static struct block *containing(CUdeviceptr address)
{
	size_t at = upper_bound(address);

	return at > 0 && address - blocks[at - 1]->address < blocks[at - 1]->size ? blocks[at - 1] : NULL;
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
	list = malloc((blocks_count + mapped + 1) * sizeof(*list));
	*count = 0;
	for (size_t i = 0; list && i < blocks_count; i++)
		if (!blocks[i]->shared)
			list[(*count)++] = blocks[i];
	pthread_mutex_unlock(&blocks_lock);
	if (list)
		*count += mappings_list(list + *count, mapped);
	return list;
}

struct copy *blocks_take_kept_copies(uint64_t bytes)
{
	uint64_t taken = 0;
	struct copy *list = NULL;

	pthread_mutex_lock(&blocks_lock);
	for (size_t i = 0; i < blocks_count && taken < bytes; i++)
		if (blocks[i]->resident && !blocks[i]->hollow)
			copy_take(&blocks[i]->copy, &list, &taken);
	pthread_mutex_unlock(&blocks_lock);
	mappings_take_kept_copies(&list, &taken, bytes);
	return list;
}

size_t blocks_resident_bytes(void)
{
	size_t bytes = 0;

	pthread_mutex_lock(&blocks_lock);
	for (size_t i = 0; i < blocks_count; i++)
		if (blocks[i]->resident && !blocks[i]->shared)
			bytes += blocks[i]->mapped;
	pthread_mutex_unlock(&blocks_lock);
	return bytes + mappings_resident_bytes();
}

bool blocks_are_in(const struct context *context)
{
	bool any = false;

	pthread_mutex_lock(&blocks_lock);
	for (size_t i = 0; i < blocks_count && !any; i++)
		any = blocks[i]->context == context && !blocks[i]->shared;
	pthread_mutex_unlock(&blocks_lock);
	return any || mappings_are_in(context);
}

/* Under the counters' lock: the page is written while the mover works.  */
void block_set_resident(struct block *block, bool resident)
{
	if (block->mapping)
		return mapping_set_resident(block->mapping, resident);
	pthread_mutex_lock(&blocks_lock);
	block->resident = resident;
	pthread_mutex_unlock(&blocks_lock);
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
	if (block->mapping)
		return mapping_set_hollow(block->mapping, hollow);
	pthread_mutex_lock(&blocks_lock);
	block->hollow = hollow;
	pthread_mutex_unlock(&blocks_lock);
}

void blocks_keep_on_gpu(CUdeviceptr address, size_t size)
{
	struct block *first;

	pthread_mutex_lock(&blocks_lock);
	for (size_t i = upper_bound(address); i < blocks_count && blocks[i]->address - address < size; i++)
		blocks[i]->shared = true;
	first = containing(address);
	if (first)
		first->shared = true;
	pthread_mutex_unlock(&blocks_lock);
	blocks_changed();
}

void blocks_set_peers(struct device *owner, uint32_t peers)
{
	uint32_t before;

	pthread_mutex_lock(&blocks_lock);
	before = atomic_exchange(&owner->peers, peers);
	for (size_t i = 0; before != peers && i < blocks_count; i++)
		if (blocks[i]->context->device == owner && blocks[i]->parts_mapped) {
			block_take_access(blocks[i], before & ~peers);
			block_set_access(blocks[i]);
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

	for (size_t i = 0; i < blocks_count; i++) {
		if (blocks[i]->context->handle == handle) {
			blocks[i]->next_doomed = taken;
			taken = blocks[i];
		} else {
			blocks[kept++] = blocks[i];
		}
	}
	blocks_count = kept;
	return taken;
}

/* A block that can move.  */
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
	for (size_t i = 0; i < blocks_count; i++) {
		int gpu = device_index(blocks[i]->context->device);

		if (gpu >= (int)AFFINODE_MAX_GPUS)
			continue;
		if (blocks[i]->shared)
			shared[gpu] += blocks[i]->mapped;
		else
			add(&bytes[gpu], blocks[i]);
	}
	pthread_mutex_unlock(&blocks_lock);
	mappings_sum(bytes, shared, mapped);
	return true;
}
