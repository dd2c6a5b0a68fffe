/* What may not be done while streams capture, and which captures it invalidates.  */
#include "driver/api.h"
#include "graph/capture_state.h"

static __thread int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* The rule of cuThreadExchangeStreamCaptureMode.  */
static bool violates(const struct capture *capture)
{
	if (capture->invalidated || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return false;
	if (capture->thread == capture_this_thread())
		return capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
	return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult capture_unsafe(void)
{
	CUresult result = CUDA_SUCCESS;

	work_lock();
	for (struct capture *capture = captures_open(); capture; capture = capture->next)
		if (violates(capture)) {
			capture->invalidated = true;
			result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	work_unlock();
	return result;
}

static CUresult forbid(struct capture *capture, CUresult error)
{
	if (capture->invalidated)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	capture->invalidated = true;
	return error;
}

CUresult capture_forbids(CUstream stream)
{
	CUresult result = CUDA_SUCCESS;
	struct capture *blocking = NULL;

	work_lock();
	if (stream->kind == STREAM_LEGACY)
		blocking = capture_of_blocking(stream->context);
	if (stream->capture)
		result = forbid(stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	else if (blocking)
		result = forbid(blocking, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	work_unlock();
	return result;
}

CUresult capture_forbids_waiting(CUstream stream)
{
	CUresult result = capture_forbids(stream);

	return result == CUDA_SUCCESS ? capture_unsafe() : result;
}

CUresult capture_forbids_event(CUevent event)
{
	CUresult result = CUDA_SUCCESS;
	struct capture *capture;

	work_lock();
	capture = event->capture;
	if (capture && !capture->graph)
		result = CUDA_ERROR_INVALID_VALUE; /* recorded in a capture that has ended */
	else if (capture)
		result = forbid(capture, CUDA_ERROR_CAPTURED_EVENT);
	work_unlock();
	return result == CUDA_SUCCESS ? capture_unsafe() : result;
}

CUresult capture_forbids_context(CUcontext context)
{
	CUresult result = CUDA_SUCCESS;

	work_lock();
	for (struct capture *capture = captures_open(); capture; capture = capture->next)
		if (capture->origin->context == context) {
			capture->invalidated = true;
			result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	work_unlock();
	return result;
}

SIM_API CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	int before = thread_mode;

	ENTER("cuThreadExchangeStreamCaptureMode");
	if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	thread_mode = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}
