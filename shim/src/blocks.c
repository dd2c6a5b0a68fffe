#include "blocks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "driver.h"
#include "gate.h"
#include "log.h"
#include "mappings.h"
#include "mover.h"
#include "shim.h"

/* The table is sorted by address: pointer queries ask for any address inside a block.  */
static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;
static struct block **blocks;
static size_t blocks_count, blocks_size;
static struct block *_Atomic doomed;
static _Atomic uint64_t blocks_generation = 1;
/* High, so that it never meets an id the driver gave to its own memory.  */
static _Atomic uint64_t next_id = 1ull << 40;

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

static bool table_insert(struct block *block)
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

/* Out of the table, with the lock held; NULL: not ours.  */
static struct block *take(CUdeviceptr address)
{
	struct block *block;
	size_t at = upper_bound(address);

	if (at == 0 || blocks[at - 1]->address != address)
		return NULL;
	block = blocks[at - 1];
	memmove(blocks + at - 1, blocks + at, (blocks_count - at) * sizeof(*blocks));
	blocks_count--;
	return block;
}

bool block_find(CUdeviceptr address, struct block *found)
{
	bool inside = false;
	size_t at;

	pthread_mutex_lock(&blocks_lock);
	at = upper_bound(address);
	if (at > 0 && address - blocks[at - 1]->address < blocks[at - 1]->size) {
		const struct block *block = blocks[at - 1];

		*found = (struct block){.address = block->address, .size = block->size, .mapped = block->mapped,
					.context = block->context, .id = block->id};
		inside = true;
	}
	pthread_mutex_unlock(&blocks_lock);
	return inside;
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

/* Under the lock of those who count: the page is written while the mover works.  */
void block_set_resident(struct block *block, bool resident)
{
	if (block->mapping)
		return mapping_set_resident(block->mapping, resident);
	pthread_mutex_lock(&blocks_lock);
	block->resident = resident;
	pthread_mutex_unlock(&blocks_lock);
}

CUresult block_create(struct block *block)
{
	const struct device *device = block->context->device;
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal}};

	prop.allocFlags.gpuDirectRDMACapable = device->rdma;
	if (block->mapping)
		prop = block->mapping->prop;
	return driver.cuMemCreate(&block->handle, block->mapped, &prop, 0);
}

/* Accessible to its own device, and to those that enabled peer access to it, as cuMemAlloc's memory is.  */
static CUresult block_set_access(struct block *block)
{
	const struct device *device = block->context->device;
	CUmemAccessDesc access[33];
	size_t n = 0;

	access[n++] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal},
					CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	for (int peer = 0; peer < 32; peer++)
		if (device->peers & (1u << peer))
			access[n++] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, peer},
							CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	return driver.cuMemSetAccess(block->address, block->mapped, access, n);
}

CUresult block_map(struct block *block)
{
	CUresult result;

	if (block->mapping)
		return mapping_map(block->mapping);
	result = driver.cuMemMap(block->address, block->mapped, 0, block->handle, 0);

	if (result != CUDA_SUCCESS)
		return result;
	result = block_set_access(block);
	if (result != CUDA_SUCCESS)
		driver.cuMemUnmap(block->address, block->mapped);
	return result;
}

CUresult block_unmap(struct block *block)
{
	CUresult result = block->mapping ? mapping_unmap_all(block->mapping)
					 : driver.cuMemUnmap(block->address, block->mapped);

	if (result != CUDA_SUCCESS)
		return result;
	/* Unmapped but not released would be a leak, not a loss: say so and go on.  */
	if (driver.cuMemRelease(block->handle) != CUDA_SUCCESS)
		log_line("cuMemRelease failed for %zu bytes at %llx", block->mapped, block->address);
	block_set_resident(block, false);
	return CUDA_SUCCESS;
}

static CUresult block_reserve_and_map(struct block *block)
{
	CUresult result = driver.cuMemAddressReserve(&block->address, block->mapped, 0, 0, 0);

	if (result != CUDA_SUCCESS)
		return result;
	result = block_create(block);
	if (result == CUDA_SUCCESS) {
		result = block_map(block);
		if (result == CUDA_SUCCESS) {
			block->resident = true;
			return CUDA_SUCCESS;
		}
		driver.cuMemRelease(block->handle);
	}
	driver.cuMemAddressFree(block->address, block->mapped);
	return result;
}

CUresult block_allocate(size_t size, CUdeviceptr *address)
{
	struct context *context = context_current();
	struct block *block;
	CUresult result;

	if (!context || !context->device->can_map || shim_is_unparkable())
		return CUDA_ERROR_NOT_SUPPORTED;
	block = calloc(1, sizeof(*block));
	if (!block)
		return CUDA_ERROR_NOT_SUPPORTED;
	context_make_ready(context);
	block->context = context;
	block->size = size;
	block->mapped = (size + context->device->granularity - 1) / context->device->granularity *
			context->device->granularity;
	block->id = atomic_fetch_add(&next_id, 1);
	result = block->mapped < size ? CUDA_ERROR_OUT_OF_MEMORY : block_reserve_and_map(block);
	if (result == CUDA_SUCCESS && !table_insert(block)) {
		block_unmap(block);
		driver.cuMemAddressFree(block->address, block->mapped);
		result = CUDA_ERROR_NOT_SUPPORTED;
	}
	if (result != CUDA_SUCCESS) {
		free(block);
		return result;
	}
	*address = block->address;
	return CUDA_SUCCESS;
}

/* The end of a block that nobody uses any more.  */
static void block_destroy(struct block *block)
{
	if (block->resident && block_unmap(block) != CUDA_SUCCESS) {
		/* The context may be gone or broken; the address stays reserved so that nothing else lands there.  */
		log_line("cuMemUnmap failed for %zu bytes at %llx", block->mapped, block->address);
		free(block);
		return;
	}
	if (block->host)
		madvise(block->host, block->mapped, MADV_DONTNEED);
	driver.cuMemAddressFree(block->address, block->mapped);
	free(block);
}

static bool any_doomed(void)
{
	return atomic_load_explicit(&doomed, memory_order_relaxed) != NULL;
}

/* cuMemFree waits for the work that may use the memory; so do we, in the block's own context.  */
static void synchronise_context(CUcontext handle)
{
	CUcontext current = NULL;

	driver.cuCtxGetCurrent(&current);
	if (current != handle && driver.cuCtxPushCurrent(handle) != CUDA_SUCCESS)
		return;
	driver.cuCtxSynchronize();
	if (current != handle)
		driver.cuCtxPopCurrent(&current);
}

void blocks_reap(bool synchronise)
{
	struct block *list;

	if (!any_doomed())
		return;
	pthread_mutex_lock(&blocks_lock);
	list = doomed;
	doomed = NULL;
	pthread_mutex_unlock(&blocks_lock);
	while (list) {
		struct block *block = list;

		list = block->next_doomed;
		if (synchronise && block->resident && block->context->handle)
			synchronise_context(block->context->handle);
		block_destroy(block);
	}
	blocks_changed();
}

bool block_free(CUdeviceptr address)
{
	GATE_PASS(pass);
	bool open = gate_try_enter(&pass, AFFINODE_CLASS_FREE);
	/* A synchronise would break an open capture; then it is freed when the last one has ended.  */
	bool now = open && !captures_open();
	struct block *block;

	/* From the table to the doomed list in one step: between the two, a resume would neither bring the block back
	 * nor end it, and its host copy would outlive the memory it is in.  */
	pthread_mutex_lock(&blocks_lock);
	block = take(address);
	if (block && !now) {
		block->next_doomed = doomed;
		doomed = block;
	}
	pthread_mutex_unlock(&blocks_lock);
	if (!block)
		return false;
	if (now) {
		blocks_reap(true);
		if (block->context->handle)
			synchronise_context(block->context->handle);
		block_destroy(block);
	} else if (!open) {
		mover_reap();
	}
	blocks_changed();
	return true;
}

void blocks_keep_on_gpu(CUdeviceptr address, size_t size)
{
	pthread_mutex_lock(&blocks_lock);
	for (size_t i = 0; i < blocks_count; i++)
		if (blocks[i]->address < address + size && address < blocks[i]->address + blocks[i]->size)
			blocks[i]->shared = true;
	pthread_mutex_unlock(&blocks_lock);
	blocks_changed();
}

void blocks_add_peer(struct device *owner, struct device *peer)
{
	if (peer->ordinal >= 32)
		return;
	pthread_mutex_lock(&blocks_lock);
	owner->peers |= 1u << peer->ordinal;
	for (size_t i = 0; i < blocks_count; i++)
		if (blocks[i]->context->device == owner && blocks[i]->resident)
			block_set_access(blocks[i]);
	pthread_mutex_unlock(&blocks_lock);
}

void blocks_drop_context(CUcontext handle)
{
	struct block *dropped = NULL;
	size_t kept = 0;

	pthread_mutex_lock(&blocks_lock);
	for (size_t i = 0; i < blocks_count; i++) {
		if (blocks[i]->context->handle == handle) {
			blocks[i]->next_doomed = dropped;
			dropped = blocks[i];
		} else {
			blocks[kept++] = blocks[i];
		}
	}
	blocks_count = kept;
	pthread_mutex_unlock(&blocks_lock);
	while (dropped) {
		struct block *block = dropped;

		dropped = block->next_doomed;
		block_destroy(block);
	}
	blocks_changed();
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
		else if (blocks[i]->resident)
			bytes[gpu].resident += blocks[i]->mapped;
		else
			bytes[gpu].parked += blocks[i]->mapped;
	}
	pthread_mutex_unlock(&blocks_lock);
	mappings_sum(bytes, shared, mapped);
	return true;
}

void blocks_reset_in_child(void)
{
	pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

	memcpy(&blocks_lock, &fresh, sizeof(fresh));
	blocks_count = 0;
	doomed = NULL;
	blocks_changed();
}
