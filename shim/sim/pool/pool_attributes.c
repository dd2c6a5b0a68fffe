/* cuMemPool*: making pools, and what is asked and set about them.  */
#include "driver/api.h"
#include "driver/device.h"
#include "pool/pool_state.h"

#define RELEASE_THRESHOLD 4 /* CU_MEMPOOL_ATTR_RELEASE_THRESHOLD */

SIM_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
	ENTER("cuDeviceGetDefaultMemPool");
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*pool = pool_default(device);
	return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	ENTER("cuDeviceSetMemPool");
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!object_is(pool, OBJECT_POOL) || pool->device != device)
		return CUDA_ERROR_INVALID_VALUE;
	pool_make_current(device, pool);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
	ENTER("cuMemPoolCreate");
	if (!pool || !properties || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE || properties->handleTypes)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!device_valid(properties->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	*pool = pool_new(properties->location.id);
	return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	ENTER("cuMemPoolDestroy");
	if (!object_is(pool, OBJECT_POOL) || pool->is_default)
		return CUDA_ERROR_INVALID_VALUE;
	ranges_write();
	pool_trim(pool, 0);
	pool->destroyed = true;
	if (!pool->used) /* else it goes with the last block that is freed */
		pool_forget(pool);
	ranges_done();
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	ENTER("cuMemPoolTrimTo");
	if (!object_is(pool, OBJECT_POOL))
		return CUDA_ERROR_INVALID_VALUE;
	ranges_write();
	pool_trim(pool, keep);
	ranges_done();
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	ENTER("cuMemPoolGetAttribute");
	if (!object_is(pool, OBJECT_POOL) || !value || attribute != CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
		return CUDA_ERROR_INVALID_VALUE;
	ranges_read();
	*(uint64_t *)value = pool->reserved;
	ranges_done();
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	ENTER("cuMemPoolSetAttribute");
	if (!object_is(pool, OBJECT_POOL) || !value || attribute != RELEASE_THRESHOLD)
		return CUDA_ERROR_INVALID_VALUE;
	ranges_write();
	pool->threshold = *(const uint64_t *)value;
	ranges_done();
	return CUDA_SUCCESS;
}
