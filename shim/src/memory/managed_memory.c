#include "memory/managed_memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/per_process.h"
#include "base/range_map.h"
#include "driver/real_driver.h"
#include "state/shim_state.h"

#define PIECE_BYTES (256ull << 20)
#define MAX_DEVICES 64

struct managed {
	size_t size;
	int device;  /* index */
	size_t sent; /* to the host, by the last park */
};

static OF_PROCESS pthread_mutex_t managed_lock = PTHREAD_MUTEX_INITIALIZER;
static OF_PROCESS struct range_map ranges; /* of struct managed */
static OF_PROCESS _Atomic uint64_t total, out[MAX_DEVICES];

/* Count memory that went to the host, or came back. Only allocations that went as a whole count: parts of others may have come
 * back unseen.  */
static void count_out(const struct managed *range, bool leaves)
{
	if (range->sent != range->size || range->device >= MAX_DEVICES)
		return;
	if (leaves)
		atomic_fetch_sub(&out[range->device], range->size);
	else
		atomic_fetch_add(&out[range->device], range->size);
}

/* With the lock held.  */
static void forget(CUdeviceptr address)
{
	struct range *range = range_beginning(&ranges, address);

	if (!range)
		return;
	count_out(range->thing, true);
	atomic_fetch_sub(&total, range->size);
	free(range->thing);
	range_remove(&ranges, range);
}

void managed_note(CUdeviceptr address, size_t size, const struct device *device)
{
	struct managed *managed = malloc(sizeof(*managed));

	pthread_mutex_lock(&managed_lock);
	forget(address); /* it went with its context, unseen */
	if (managed && range_add(&ranges, address, size, managed) == 0) {
		*managed = (struct managed){.size = size, .device = device_index(device)};
		atomic_fetch_add(&total, size);
	} else {
		free(managed); /* it is never sent out, and nothing worse */
	}
	pthread_mutex_unlock(&managed_lock);
}

void managed_forget(CUdeviceptr address)
{
	if (atomic_load_explicit(&total, memory_order_relaxed) == 0)
		return;
	pthread_mutex_lock(&managed_lock);
	forget(address);
	pthread_mutex_unlock(&managed_lock);
}

uint64_t managed_bytes(void)
{
	return atomic_load(&total);
}

uint64_t managed_bytes_out(int device)
{
	return shim_is_parked() && device < MAX_DEVICES ? atomic_load(&out[device]) : 0;
}

static CUresult prefetch(CUdeviceptr address, size_t size, CUstream stream)
{
	const CUmemLocation host = {CU_MEM_LOCATION_TYPE_HOST, 0};

	if (driver.cuMemPrefetchAsync)
		return driver.cuMemPrefetchAsync(address, size, CU_DEVICE_CPU, stream);
	if (driver.cuMemPrefetchAsync_v2)
		return driver.cuMemPrefetchAsync_v2(address, size, host, 0, stream);
	return CUDA_ERROR_NOT_SUPPORTED;
}

/* Return a context of that device in which managed memory can be sent to the host; NULL if the device cannot share pages with
 * the host at any time, since then the driver moves them by its own rules.  */
static struct context *context_to_send_from(int device)
{
	struct context *context = context_to_copy_in(device_at(device));
	int shares = 0;

	if (!context || driver.cuDeviceGetAttribute(&shares, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
						    context->device->ordinal) != CUDA_SUCCESS)
		return NULL;
	return shares && driver.cuCtxSetCurrent(context->handle) == CUDA_SUCCESS ? context : NULL;
}

/* Begin the next piece at or after *at, no more than one allocation; 0 bytes: none is left. The lock is held only while
 * the driver takes the order, so that a free is not given away under it, and does not wait for the wire either.  */
static size_t send_next(CUdeviceptr *at, struct context **context, CUresult *result)
{
	struct range *range;
	size_t bytes = 0;

	pthread_mutex_lock(&managed_lock);
	range = range_first(&ranges, *at, UINT64_MAX - *at);
	if (range) {
		if (*at < range->address)
			*at = range->address;
		bytes = range->size - (*at - range->address);
		if (bytes > PIECE_BYTES)
			bytes = PIECE_BYTES;
		*context = context_to_send_from(((struct managed *)range->thing)->device);
		*result = *context ? prefetch(*at, bytes, (*context)->stream) : CUDA_ERROR_NOT_SUPPORTED;
	}
	pthread_mutex_unlock(&managed_lock);
	return bytes;
}

static void note_sent(CUdeviceptr at, size_t bytes)
{
	struct managed *managed;
	struct range *range;

	pthread_mutex_lock(&managed_lock);
	range = range_first(&ranges, at, 1);
	if (range) { /* not freed meanwhile */
		managed = range->thing;
		managed->sent += bytes;
		count_out(managed, false);
	}
	pthread_mutex_unlock(&managed_lock);
}

static void forget_what_was_sent(void)
{
	pthread_mutex_lock(&managed_lock);
	for (size_t i = 0; i < ranges.count; i++) {
		struct managed *managed = ranges.ranges[i].thing;

		count_out(managed, true);
		managed->sent = 0;
	}
	pthread_mutex_unlock(&managed_lock);
}

uint64_t managed_prefetch_out(bool (*stop)(void))
{
	struct context *context = NULL;
	CUresult result = CUDA_SUCCESS;
	CUdeviceptr at = 0;
	uint64_t sent = 0;
	size_t bytes;

	forget_what_was_sent();
	while (!(stop && stop()) && (bytes = send_next(&at, &context, &result)) > 0) {
		if (result == CUDA_SUCCESS && driver.cuStreamSynchronize(context->stream) == CUDA_SUCCESS) {
			note_sent(at, bytes);
			sent += bytes;
		}
		at += bytes;
	}
	driver.cuCtxSetCurrent(NULL);
	return sent;
}
