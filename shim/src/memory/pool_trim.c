#include "memory/pool_trim.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/growable.h"
#include "base/per_process.h"
#include "driver/real_driver.h"

#define MAX_DEVICES 64

/* Guards the list. It is held while a pool is trimmed, so that the application cannot destroy the pool meanwhile.  */
static OF_PROCESS pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static OF_PROCESS CUmemoryPool *pools; /* made by the application */
static OF_PROCESS size_t pools_count, pools_size;
static OF_PROCESS _Atomic bool device_has_used[MAX_DEVICES]; /* its default or current pool */

void pools_note_device(const struct device *device)
{
	int index = device_index(device);

	if (index < MAX_DEVICES && !atomic_load_explicit(&device_has_used[index], memory_order_relaxed))
		atomic_store(&device_has_used[index], true);
}

void pool_note(CUmemoryPool pool)
{
	pthread_mutex_lock(&pools_lock);
	if (array_has_room(pools, pools_count, pools_size)) /* else it is never trimmed, and nothing worse */
		pools[pools_count++] = pool;
	pthread_mutex_unlock(&pools_lock);
}

void pool_forget(CUmemoryPool pool)
{
	pthread_mutex_lock(&pools_lock);
	for (size_t i = 0; i < pools_count; i++)
		if (pools[i] == pool) {
			pools[i] = pools[--pools_count];
			break;
		}
	pthread_mutex_unlock(&pools_lock);
}

static uint64_t pool_reserved(CUmemoryPool pool)
{
	uint64_t bytes = 0;

	if (!driver.cuMemPoolGetAttribute ||
	    driver.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes) != CUDA_SUCCESS)
		return 0;
	return bytes;
}

static uint64_t trim_pool(CUmemoryPool pool)
{
	uint64_t before = pool_reserved(pool), after;

	if (driver.cuMemPoolTrimTo(pool, 0) != CUDA_SUCCESS)
		return 0;
	after = pool_reserved(pool);
	return before > after ? before - after : 0;
}

/* Trim the device's default pool, which is there for as long as the device. Any other current pool was made by the application,
 * and is in the list. (One that was imported from another process allocates nothing here, and cannot be current.)  */
static uint64_t trim_default_pool(const struct device *device)
{
	CUmemoryPool pool = NULL;

	if (!driver.cuDeviceGetDefaultMemPool ||
	    driver.cuDeviceGetDefaultMemPool(&pool, device->ordinal) != CUDA_SUCCESS || !pool)
		return 0;
	return trim_pool(pool);
}

static uint64_t graph_reserved(const struct device *device)
{
	uint64_t bytes = 0;

	if (driver.cuDeviceGetGraphMemAttribute(device->ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes) !=
	    CUDA_SUCCESS)
		return 0;
	return bytes;
}

/* Trim what allocation nodes of graphs took.  */
static uint64_t trim_graphs(const struct device *device)
{
	uint64_t before, after;

	if (!driver.cuDeviceGetGraphMemAttribute || !driver.cuDeviceGraphMemTrim)
		return 0;
	before = graph_reserved(device);
	if (before == 0 || driver.cuDeviceGraphMemTrim(device->ordinal) != CUDA_SUCCESS)
		return 0;
	after = graph_reserved(device);
	return before > after ? before - after : 0;
}

uint64_t pools_trim(void)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	uint64_t bytes = 0;

	/* Relaxed: a capture that begins meanwhile must not be broken by this thread's housekeeping.  */
	if (!driver.cuMemPoolTrimTo || driver.cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS)
		return 0;
	for (int i = 0; i < device_count_known() && i < MAX_DEVICES; i++) {
		struct context *context = context_to_copy_in(device_at(i));

		if (!context || driver.cuCtxSetCurrent(context->handle) != CUDA_SUCCESS)
			continue;
		if (atomic_load(&device_has_used[i]))
			bytes += trim_default_pool(device_at(i));
		bytes += trim_graphs(device_at(i));
	}
	pthread_mutex_lock(&pools_lock);
	for (size_t i = 0; i < pools_count; i++)
		bytes += trim_pool(pools[i]);
	pthread_mutex_unlock(&pools_lock);
	driver.cuCtxSetCurrent(NULL);
	driver.cuThreadExchangeStreamCaptureMode(&mode);
	return bytes;
}
