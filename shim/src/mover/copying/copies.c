#include "mover/copying/copies.h"

#include <sys/mman.h>

#include "base/monotonic_futex.h"
#include "driver/real_driver.h"
#include "host/bounce_ring.h"
#include "host/packs/spill_file.h"

/* Eight stretches of 32 MiB are 5 ms at 50 GiB/s: that long a revoked park goes on.  */
_Static_assert(TRANSFERS_UNDER_WAY * SLAB_BYTES <= 256ull << 20, "a revoked park would go on for too long");

static CUresult make_event(CUevent *event)
{
	return *event ? CUDA_SUCCESS : driver.cuEventCreate(event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
}

CUresult transfers_make_ready(struct context *context)
{
	CUresult result = CUDA_SUCCESS;

	for (int i = 0; i < TRANSFERS_UNDER_WAY && result == CUDA_SUCCESS; i++)
		result = make_event(&context->events[i]);
	for (int i = 0; i < 2 && result == CUDA_SUCCESS; i++)
		result = make_event(&context->marks[i]);
	return result;
}

/* A free event of the ring: its last copy is done.  */
static CUresult next_event(struct context *context, CUevent *event)
{
	unsigned i = context->next_event;

	context->next_event = (i + 1) % TRANSFERS_UNDER_WAY;
	*event = context->events[i];
	return driver.cuEventSynchronize(*event);
}

/* Without a ring: chunk by chunk, by memory that is not pinned.  */
static CUresult read_in(const struct stretch *stretch)
{
	struct context *context = stretch->context;
	void *chunk = mmap(NULL, CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CUresult result = chunk == MAP_FAILED ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;

	for (size_t done = 0; done < stretch->bytes && result == CUDA_SUCCESS; done += CHUNK_BYTES) {
		if (spill_read(stretch->place + (uint32_t)(done / CHUNK_BYTES), chunk, CHUNK_BYTES) != 0)
			result = CUDA_ERROR_OPERATING_SYSTEM;
		else
			result = driver.cuMemcpyHtoDAsync(stretch->device + done, chunk, CHUNK_BYTES, context->stream);
		if (result == CUDA_SUCCESS)
			result = driver.cuStreamSynchronize(context->stream);
	}
	if (chunk != MAP_FAILED)
		munmap(chunk, CHUNK_BYTES);
	return result;
}

CUresult transfer_begin(const struct stretch *stretch, bool out)
{
	struct context *context = stretch->context;
	CUstream stream;
	CUresult result;
	CUevent event;
	void *host;

	if (stretch->bytes == 0)
		return CUDA_SUCCESS;
	stream = context->stream;
	if (!context->handle || driver.cuCtxSetCurrent(context->handle) != CUDA_SUCCESS)
		return CUDA_ERROR_INVALID_VALUE;
	if ((stretch->place || !stretch->host.slab->registered) && staging_is_possible(context))
		return staging_copy(stretch, out);
	if (stretch->place)
		return read_in(stretch);
	host = slot_memory(&stretch->host);
	result = next_event(context, &event);
	if (result != CUDA_SUCCESS)
		return result;
	if (out)
		result = driver.cuMemcpyDtoHAsync(host, stretch->device, stretch->bytes, stream);
	else
		result = driver.cuMemcpyHtoDAsync(stretch->device, host, stretch->bytes, stream);
	return result == CUDA_SUCCESS ? driver.cuEventRecord(event, stream) : result;
}

CUresult transfer_zeros(struct context *context, CUdeviceptr device, size_t bytes)
{
	if (!context->handle || driver.cuCtxSetCurrent(context->handle) != CUDA_SUCCESS)
		return CUDA_ERROR_INVALID_VALUE;
	return driver.cuMemsetD32Async(device, 0, bytes / 4, context->stream);
}

CUresult transfers_mark(struct context *context, unsigned mark)
{
	if (!context->handle || driver.cuCtxSetCurrent(context->handle) != CUDA_SUCCESS)
		return CUDA_ERROR_INVALID_VALUE;
	staging_mark(context, mark);
	return driver.cuEventRecord(context->marks[mark], context->stream);
}

CUresult transfers_wait_for(struct context *context, unsigned mark)
{
	CUresult staged = staging_wait_for(context, mark), result = driver.cuEventSynchronize(context->marks[mark]);

	return staged != CUDA_SUCCESS ? staged : result;
}

CUresult transfers_finish(struct context *context)
{
	/* First, for its threads may still give the stream something to do.  */
	CUresult staged = staging_finish(context), result, done;

	if (!context->handle)
		return CUDA_ERROR_INVALID_VALUE;
	driver.cuCtxSetCurrent(context->handle);
	done = result = driver.cuStreamSynchronize(context->stream);
	/* Whatever they said: memory must not go while a copy may still be under way.  */
	while (done != CUDA_SUCCESS && (done = driver.cuStreamQuery(context->stream)) == CUDA_ERROR_NOT_READY)
		clock_sleep_ns(MS_NS);
	context->in_doubt = done != CUDA_SUCCESS;
	return staged != CUDA_SUCCESS ? staged : result;
}
