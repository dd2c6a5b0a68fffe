/* cuMemAllocAsync, cuMemFreeAsync and memory pools.
 *
 * Memory is given out at the call and comes back when the stream gets to the free. Blocks that came back stay charged
 * until something synchronises, and after that as far as the pool's release threshold allows: as with the driver, a
 * free alone does not make the GPU emptier.  */
#include "pool/pool.h"

#include <stdlib.h>

#include "driver/api.h"
#include "driver/device.h"
#include "stream/capture.h"
#include "memory/memfile.h"
#include "memory/memory.h"
#include "pool/pool_state.h"

struct free_operation {
	struct operation operation;
	CUdeviceptr address;
};

static CUmemoryPool default_pools[SIM_MAX_GPUS], current_pools[SIM_MAX_GPUS];
static CUmemoryPool all;

/* The pools change under the ranges' write lock.  */
CUmemoryPool pool_new(CUdevice device)
{
	CUmemoryPool pool = object_new(OBJECT_POOL, sizeof(*pool));

	if (!pool)
		return NULL;
	pool->device = device;
	ranges_write();
	pool->next = all;
	all = pool;
	ranges_done();
	return pool;
}

CUmemoryPool pool_default(CUdevice device)
{
	if (!default_pools[device]) {
		default_pools[device] = pool_new(device);
		if (default_pools[device])
			default_pools[device]->is_default = true;
	}
	return default_pools[device];
}

CUmemoryPool pool_current(CUdevice device)
{
	return current_pools[device] ? current_pools[device] : pool_default(device);
}

void pool_make_current(CUdevice device, CUmemoryPool pool)
{
	current_pools[device] = pool;
}

static void release(CUmemoryPool pool, struct pool_block *block)
{
	address_release(block->start, block->cost);
	memfile_drop(block->offset, block->cost);
	machine_refund(device_gpu(pool->device), block->cost);
	pool->reserved -= block->cost;
	free(block);
}

void pool_trim(CUmemoryPool pool, uint64_t keep)
{
	while (pool->idle && pool->reserved > keep) {
		struct pool_block *block = pool->idle;

		pool->idle = block->next;
		release(pool, block);
	}
}

void pools_synchronised(void)
{
	if (!__atomic_load_n(&all, __ATOMIC_ACQUIRE))
		return;
	ranges_write();
	for (CUmemoryPool pool = all; pool; pool = pool->next)
		pool_trim(pool, pool->threshold);
	ranges_done();
}

void pool_forget(CUmemoryPool pool)
{
	CUmemoryPool *link = &all;

	pool_trim(pool, 0);
	while (*link != pool)
		link = &(*link)->next;
	*link = pool->next;
	for (unsigned i = 0; i < SIM_MAX_GPUS; i++)
		if (current_pools[i] == pool)
			current_pools[i] = NULL;
	object_free(OBJECT_POOL, pool);
}

void pool_give_back(struct range *range)
{
	CUmemoryPool pool = range->owner;
	struct pool_block *block = malloc(sizeof(*block));

	pool->used -= range->charged;
	if (block) {
		block->start = range->start;
		block->cost = range->charged;
		block->offset = range->file_offset;
		block->next = pool->idle;
		pool->idle = block;
		ranges_remove(&memory_ranges, range->start);
	} else {
		pool->reserved -= range->charged;
		memory_drop_block(range);
	}
	if (pool->destroyed && !pool->used)
		pool_forget(pool);
}

/* The smallest idle block that is big enough and not wasteful.  */
static struct pool_block *take_idle(CUmemoryPool pool, uint64_t cost)
{
	struct pool_block **best = NULL, *block;

	for (struct pool_block **link = &pool->idle; *link; link = &(*link)->next)
		if ((*link)->cost >= cost && (*link)->cost <= 2 * cost && (!best || (*link)->cost < (*best)->cost))
			best = link;
	if (!best)
		return NULL;
	block = *best;
	*best = block->next;
	return block;
}

static CUresult reuse(CUmemoryPool pool, CUcontext context, uint64_t size, CUdeviceptr *address)
{
	uint64_t cost = (size + SIM_GRANULARITY - 1) / SIM_GRANULARITY * SIM_GRANULARITY;
	struct pool_block *block = take_idle(pool, cost);
	struct range range = {.size = size, .kind = RANGE_POOL, .device = pool->device, .context = context,
			      .owner = pool, .on_device = true};

	if (!block)
		return CUDA_ERROR_NOT_FOUND;
	range.start = block->start;
	range.charged = block->cost;
	range.file_offset = block->offset;
	if (!ranges_add(&memory_ranges, &range)) {
		release(pool, block);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*address = block->start;
	free(block);
	return CUDA_SUCCESS;
}

static void count(CUmemoryPool pool, CUdeviceptr address, bool fresh)
{
	struct range *range = ranges_find(&memory_ranges, address);

	pool->used += range->charged;
	if (fresh)
		pool->reserved += range->charged;
}

static CUresult allocate(CUcontext context, CUmemoryPool pool, size_t size, CUdeviceptr *address)
{
	CUresult result;
	bool fresh = false;

	if (!pool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	ranges_write();
	result = reuse(pool, context, size, address);
	ranges_done();
	if (result == CUDA_ERROR_NOT_FOUND) {
		fresh = true;
		result = memory_new_block(context, RANGE_POOL, size, pool, address);
		if (result == CUDA_ERROR_OUT_OF_MEMORY) { /* what the pools keep is given up before that is said */
			ranges_write();
			for (CUmemoryPool other = all; other; other = other->next)
				pool_trim(other, 0);
			ranges_done();
			result = memory_new_block(context, RANGE_POOL, size, pool, address);
		}
	}
	if (result == CUDA_SUCCESS) {
		ranges_write();
		count(pool, *address, fresh);
		ranges_done();
	}
	return result;
}

static CUresult allocate_async(const char *called, CUdeviceptr *address, size_t size, CUmemoryPool pool, bool given,
			       CUstream handle)
{
	CUstream stream;

	ENTER_CONTEXT(called, context);
	if (!address || !size || (given && !object_is(pool, OBJECT_POOL)))
		return CUDA_ERROR_INVALID_VALUE;
	refused_ = stream_of(context, handle, &stream);
	if (refused_ == CUDA_SUCCESS && capture_active(stream))
		refused_ = CUDA_ERROR_NOT_SUPPORTED; /* allocation nodes are not simulated */
	if (refused_ != CUDA_SUCCESS)
		return refused_;
	if (!given)
		pool = pool_current(stream->context->device);
	return allocate(stream->context, pool, size, address);
}

static CUresult run_free(struct operation *operation, CUstream stream)
{
	CUdeviceptr address = ((struct free_operation *)operation)->address;
	struct range *range;

	(void)stream;
	ranges_write();
	range = ranges_find(&memory_ranges, address);
	if (range && range->start == address && range->kind == RANGE_POOL)
		pool_give_back(range);
	ranges_done();
	return CUDA_SUCCESS;
}

/* A plain allocation may be freed this way too, when the stream gets there.  */
static CUresult run_plain_free(struct operation *operation, CUstream stream)
{
	struct range *range;

	(void)stream;
	ranges_write();
	range = ranges_find(&memory_ranges, ((struct free_operation *)operation)->address);
	if (range)
		memory_drop(range);
	ranges_done();
	return CUDA_SUCCESS;
}

static CUresult free_async(CUdeviceptr address, CUstream handle)
{
	struct free_operation *operation;
	enum range_kind kind = RANGE_HOST;
	struct range *range;
	CUstream stream;

	ENTER_CONTEXT("cuMemFreeAsync", context);
	if (!address)
		return CUDA_SUCCESS;
	refused_ = stream_of(context, handle, &stream);
	if (refused_ == CUDA_SUCCESS && capture_active(stream))
		refused_ = CUDA_ERROR_NOT_SUPPORTED;
	if (refused_ != CUDA_SUCCESS)
		return refused_;
	ranges_read();
	range = ranges_find(&memory_ranges, address);
	if (range && range->start == address)
		kind = range->kind;
	ranges_done();
	if (kind != RANGE_POOL && kind != RANGE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	operation = operation_new(sizeof(*operation), kind == RANGE_POOL ? run_free : run_plain_free);
	if (!operation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	operation->address = address;
	return stream_submit(stream, &operation->operation, NULL);
}

SIM_API CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream)
{
	return allocate_async("cuMemAllocAsync", address, size, NULL, false, stream);
}

SIM_API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t size, CUstream stream)
{
	return allocate_async("cuMemAllocAsync", address, size, NULL, false, PER_THREAD(stream));
}

SIM_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream)
{
	return allocate_async("cuMemAllocFromPoolAsync", address, size, pool, true, stream);
}

SIM_API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream)
{
	return allocate_async("cuMemAllocFromPoolAsync", address, size, pool, true, PER_THREAD(stream));
}

SIM_API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
	return free_async(address, stream);
}

SIM_API CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
	return free_async(address, PER_THREAD(stream));
}
