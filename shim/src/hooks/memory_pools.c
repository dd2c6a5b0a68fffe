/* Hooks on stream-ordered allocation and its pools: counted, and trimmed when the rest is parked.  */
#include "gpu/contexts.h"
#include "hooks/gated_hook.h"
#include "memory/blocks/block.h"
#include "memory/managed_memory.h"
#include "memory/pool_trim.h"
#include "memory/unmovable_bytes.h"
#include "state/shim_state.h"

static CUresult note_allocation(CUresult result, const CUdeviceptr *address, size_t size)
{
	struct context *context;

	if (result != CUDA_SUCCESS || !address || !shim_is_on())
		return result;
	context = context_current();
	unmovable_add(UNMOVABLE_POINTER, *address, AFFINODE_UNMOVABLE_POOL, context, size);
	if (context)
		pools_note_device(context->device);
	return result;
}

static CUresult allocate_async(void *real, CUdeviceptr *address, size_t size, CUstream stream)
{
	GATE_PASS(pass);
	CUresult result = gate_enter_as(&pass, AFFINODE_CLASS_ALLOC, "cuMemAllocAsync");

	if (result != CUDA_SUCCESS)
		return result;
	result = ((CUresult(*)(CUdeviceptr *, size_t, CUstream))real)(address, size, stream);
	return note_allocation(result, address, size);
}

ROOM_HOOK(cuMemAllocAsync, (CUdeviceptr * address, size_t size, CUstream stream), (address, size, stream), allocate_async,
	  after_out_of_memory(size, &wait))

static CUresult allocate_from_pool(void *real, CUdeviceptr *address, size_t size, void *pool, CUstream stream)
{
	GATE_PASS(pass);
	CUresult result = gate_enter_as(&pass, AFFINODE_CLASS_ALLOC, "cuMemAllocFromPoolAsync");

	if (result != CUDA_SUCCESS)
		return result;
	result = ((CUresult(*)(CUdeviceptr *, size_t, void *, CUstream))real)(address, size, pool, stream);
	return note_allocation(result, address, size);
}

ROOM_HOOK(cuMemAllocFromPoolAsync, (CUdeviceptr * address, size_t size, void *pool, CUstream stream),
	  (address, size, pool, stream), allocate_from_pool, after_out_of_memory(size, &wait))

/* The driver allows it on cuMemAlloc's memory too, in the order of `stream`; for a block it waits for the whole context, which
 * is a stronger order.  */
static CUresult on_cuMemFreeAsync(void *real, CUdeviceptr address, CUstream stream)
{
	if (address && block_free(address))
		return CUDA_SUCCESS;
	unmovable_remove(UNMOVABLE_POINTER, address);
	managed_forget(address);
	return ((CUresult(*)(CUdeviceptr, CUstream))real)(address, stream);
}
HOOK(cuMemFreeAsync, (CUdeviceptr address, CUstream stream), address, stream)

static CUresult note_pool(CUresult result, const CUmemoryPool *pool)
{
	if (result == CUDA_SUCCESS && pool && shim_is_on())
		pool_note(*pool);
	return result;
}

GATED_HOOK(cuMemPoolCreate, ALLOC, (CUmemoryPool * pool, const void *properties), (pool, properties), NOTHING_BEFORE,
	   note_pool(called, pool))

/* The pool is forgotten before it is destroyed: that waits for a trim under way, and the next trim does not know the pool.  */
static CUresult on_cuMemPoolDestroy(void *real, CUmemoryPool pool)
{
	pool_forget(pool);
	return ((CUresult(*)(CUmemoryPool))real)(pool);
}
HOOK(cuMemPoolDestroy, (CUmemoryPool pool), pool)
