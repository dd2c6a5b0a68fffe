/* Contexts named instead of current: cuCtxRecordEvent, cuCtxWaitEvent, and the calls that CUDA 13 added.  */
#include "driver/api.h"
#include "graph/capture.h"
#include "pool/pool.h"

/* The event is behind everything the context was given: the legacy stream's order, and that of the streams beside it.  */
SIM_API CUresult cuCtxRecordEvent(CUcontext context, CUevent event)
{
	CUresult result = CUDA_SUCCESS;
	struct fence *fence = NULL;

	ENTER("cuCtxRecordEvent");
	if (!context_is(context) || !context->active)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!object_is(event, OBJECT_EVENT) || event->context != context)
		return CUDA_ERROR_INVALID_HANDLE;
	result = capture_forbids_context(context);
	if (result != CUDA_SUCCESS)
		return result;
	work_lock();
	for (CUstream stream = context->streams; stream && result == CUDA_SUCCESS; stream = stream->next)
		if (stream != context->legacy)
			result = stream_wait_fence(context->legacy, stream->latest);
	if (result == CUDA_SUCCESS)
		result = stream_enqueue(context->legacy, NULL, NULL, &fence);
	if (result == CUDA_SUCCESS) {
		fence_release(event->fence);
		capture_forget_event(event);
		event->fence = fence;
	}
	work_unlock();
	return result;
}

/* All streams' later work waits for it.  */
SIM_API CUresult cuCtxWaitEvent(CUcontext context, CUevent event)
{
	CUresult result;

	ENTER("cuCtxWaitEvent");
	if (!context_is(context) || !context->active)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!object_is(event, OBJECT_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	result = capture_forbids_context(context);
	if (result != CUDA_SUCCESS)
		return result;
	work_lock();
	for (CUstream stream = context->streams; stream && result == CUDA_SUCCESS; stream = stream->next)
		result = stream_wait_fence(stream, event->fence);
	work_unlock();
	return result;
}

SIM_API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
	ENTER("cuCtxGetDevice");
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	if (!context_is(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	*device = context->device;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxSynchronize_v2(CUcontext context)
{
	CUresult result;

	ENTER("cuCtxSynchronize");
	if (!context_is(context) || !context->active)
		return CUDA_ERROR_INVALID_CONTEXT;
	result = context->sticky != CUDA_SUCCESS ? context->sticky : capture_forbids_context(context);
	if (result != CUDA_SUCCESS)
		return result;
	streams_finish(context);
	pools_synchronised();
	return context->sticky;
}

SIM_API CUresult cuCtxSetFlags(unsigned int flags)
{
	ENTER_CONTEXT("cuCtxSetFlags", context);
	if (flags & ~(unsigned)CU_CTX_FLAGS_MASK)
		return CUDA_ERROR_INVALID_VALUE;
	context->flags = flags | CU_CTX_MAP_HOST;
	return CUDA_SUCCESS;
}

/* No profiler is attached; the driver answers the same then.  */
SIM_API CUresult cuProfilerStart(void)
{
	ENTER("cuProfilerStart");
	return CUDA_SUCCESS;
}

SIM_API CUresult cuProfilerStop(void)
{
	ENTER("cuProfilerStop");
	return CUDA_SUCCESS;
}
