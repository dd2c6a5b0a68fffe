/* cuEvent*.  */
#include "stream/event.h"

#include <stdlib.h>

#include "driver/api.h"
#include "stream/capture.h"
#include "pool/pool.h"

/* Under the work lock.  */
static void forget(CUevent event)
{
	fence_release(event->fence);
	event->fence = NULL;
	event->capture_id = 0;
}

CUresult event_wait_in(CUstream stream, CUevent event)
{
	CUresult result;

	work_lock();
	result = capture_wait_event(stream, event);
	if (result == CUDA_ERROR_NOT_FOUND) /* neither is capturing */
		result = stream_wait_fence(stream, event->fence);
	work_unlock();
	return result;
}

SIM_API CUresult cuEventCreate(CUevent *made, unsigned int flags)
{
	CUevent event;

	ENTER_CONTEXT("cuEventCreate", context);
	if (!made || flags > 7 || ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
		return CUDA_ERROR_INVALID_VALUE;
	event = object_new(OBJECT_EVENT, sizeof(*event));
	if (!event)
		return CUDA_ERROR_OUT_OF_MEMORY;
	event->context = context;
	event->flags = flags;
	*made = event;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuEventDestroy_v2(CUevent event)
{
	ENTER("cuEventDestroy");
	if (!object_is(event, OBJECT_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	work_lock();
	forget(event);
	work_unlock();
	object_free(OBJECT_EVENT, event);
	return CUDA_SUCCESS;
}

static CUresult record(CUevent event, CUstream handle)
{
	struct fence *fence = NULL;
	CUcontext context;
	CUstream stream;
	CUresult result = context_current(&context);

	if (result == CUDA_SUCCESS && !object_is(event, OBJECT_EVENT))
		result = CUDA_ERROR_INVALID_HANDLE;
	if (result == CUDA_SUCCESS)
		result = stream_of(context, handle, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (context_home(stream->context) != context_home(event->context))
		return CUDA_ERROR_INVALID_HANDLE;
	work_lock();
	result = capture_record_event(stream, event);
	if (result == CUDA_ERROR_NOT_FOUND) {
		result = stream_enqueue(stream, NULL, NULL, &fence);
		if (result == CUDA_SUCCESS) {
			forget(event);
			event->fence = fence;
		}
	}
	work_unlock();
	return result;
}

SIM_API CUresult cuEventRecord(CUevent event, CUstream stream)
{
	ENTER("cuEventRecord");
	return record(event, stream);
}

SIM_API CUresult cuEventQuery(CUevent event)
{
	bool ready;

	ENTER_CONTEXT("cuEventQuery", context);
	if (!object_is(event, OBJECT_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	refused_ = capture_forbids_event(event);
	if (refused_ != CUDA_SUCCESS)
		return refused_;
	work_lock();
	ready = !event->fence || event->fence->done;
	work_unlock();
	return ready ? context->sticky : CUDA_ERROR_NOT_READY;
}

SIM_API CUresult cuEventSynchronize(CUevent event)
{
	struct fence *fence;

	ENTER_CONTEXT("cuEventSynchronize", context);
	if (!object_is(event, OBJECT_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	refused_ = capture_forbids_event(event);
	if (refused_ != CUDA_SUCCESS)
		return refused_;
	work_lock();
	fence = fence_hold(event->fence);
	work_unlock();
	fence_wait(fence);
	work_lock();
	fence_release(fence);
	work_unlock();
	pools_synchronised();
	return context->sticky;
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end)
{
	CUresult result = CUDA_SUCCESS;

	if (!milliseconds)
		return CUDA_ERROR_INVALID_VALUE;
	if (!object_is(start, OBJECT_EVENT) || !object_is(end, OBJECT_EVENT) ||
	    ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING))
		return CUDA_ERROR_INVALID_HANDLE;
	work_lock();
	if (!start->fence || !end->fence)
		result = CUDA_ERROR_INVALID_HANDLE;
	else if (!start->fence->done || !end->fence->done)
		result = CUDA_ERROR_NOT_READY;
	else
		*milliseconds = (float)((double)(int64_t)(end->fence->end_ns - start->fence->end_ns) / 1e6);
	work_unlock();
	return result;
}

SIM_API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
	ENTER("cuEventElapsedTime");
	return elapsed(milliseconds, start, end);
}

SIM_API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
	ENTER("cuEventElapsedTime");
	return elapsed(milliseconds, start, end);
}
