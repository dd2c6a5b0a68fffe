/* cuMemPool*: making pools, and what is asked and set about them.  */
#include "driver/api.h"
#include "driver/device.h"
#include "pool/pool_state.h"

enum {
	POOL_REUSE_FIRST = 1,
	POOL_REUSE_LAST = 3,
	POOL_RELEASE_THRESHOLD = 4,
	POOL_RESERVED_CURRENT,
	POOL_RESERVED_HIGH,
	POOL_USED_CURRENT,
	POOL_USED_HIGH,
};

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

static CUresult get(CUmemoryPool pool, int attribute, void *value)
{
	const uint64_t numbers[] = {pool->threshold, pool->reserved, pool->reserved_high, pool->used, pool->used_high};

	if (attribute >= POOL_REUSE_FIRST && attribute <= POOL_REUSE_LAST)
		*(int *)value = pool->flags[attribute];
	else if (attribute >= POOL_RELEASE_THRESHOLD && attribute <= POOL_USED_HIGH)
		*(uint64_t *)value = numbers[attribute - POOL_RELEASE_THRESHOLD];
	else
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult set(CUmemoryPool pool, int attribute, const void *value)
{
	if (attribute >= POOL_REUSE_FIRST && attribute <= POOL_REUSE_LAST)
		pool->flags[attribute] = *(const int *)value != 0;
	else if (attribute == POOL_RELEASE_THRESHOLD)
		pool->threshold = *(const uint64_t *)value;
	else if (attribute == POOL_RESERVED_HIGH && !*(const uint64_t *)value)
		pool->reserved_high = pool->reserved;
	else if (attribute == POOL_USED_HIGH && !*(const uint64_t *)value)
		pool->used_high = pool->used;
	else
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	CUresult result;

	ENTER("cuMemPoolGetAttribute");
	if (!object_is(pool, OBJECT_POOL) || !value)
		return CUDA_ERROR_INVALID_VALUE;
	ranges_read();
	result = get(pool, attribute, value);
	ranges_done();
	return result;
}

SIM_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	CUresult result;

	ENTER("cuMemPoolSetAttribute");
	if (!object_is(pool, OBJECT_POOL) || !value)
		return CUDA_ERROR_INVALID_VALUE;
	ranges_write();
	result = set(pool, attribute, value);
	ranges_done();
	return result;
}
