/* Errors, and what they invalidate, are as they were read off driver 580.159 on an H200, call by call.  */
#include "stream/capture.h"

#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver/api.h"

struct CUgraph_st {
	struct object object;
};

struct capture {
	struct capture *next; /* of those that have not ended */
	uint64_t id;          /* events that were recorded in it have it, also when it has ended */
	CUstream origin;
	int mode;
	int thread; /* that began it */
	bool invalidated;
};

static struct capture *open_captures;
static __thread int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static int this_thread(void)
{
	static __thread int thread;

	if (!thread)
		thread = (int)syscall(SYS_gettid);
	return thread;
}

static CUresult begin_in(CUstream stream, int mode)
{
	static uint64_t last_id;
	struct capture *capture = calloc(1, sizeof(*capture));

	if (!capture)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*capture = (struct capture){open_captures, ++last_id, stream, mode, this_thread(), false};
	stream->capture = open_captures = capture;
	return CUDA_SUCCESS;
}

static void end_it(struct capture *capture)
{
	struct capture **link = &open_captures;

	while (*link != capture)
		link = &(*link)->next;
	*link = capture->next;
	capture->origin->capture = NULL;
	free(capture);
}

/* NULL: it was recorded in none, or that has ended.  */
static struct capture *capture_of(CUevent event)
{
	struct capture *capture = event->capture_id ? open_captures : NULL;

	while (capture && capture->id != event->capture_id)
		capture = capture->next;
	return capture;
}

/* A blocking stream of this context captures: the legacy stream may not be used.  */
static struct capture *capture_of_blocking(CUcontext context)
{
	struct capture *capture = open_captures;

	while (capture && (capture->origin->context != context || !stream_blocking(capture->origin)))
		capture = capture->next;
	return capture;
}

static CUresult invalidate(struct capture *capture, CUresult error)
{
	if (capture)
		capture->invalidated = true;
	return error;
}

/* The legacy stream would wait for a capturing one.  */
static CUresult forbid_implicit(CUstream stream)
{
	struct capture *capture = stream->kind == STREAM_LEGACY ? capture_of_blocking(stream->context) : NULL;

	return capture ? invalidate(capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) : CUDA_ERROR_NOT_FOUND;
}

CUresult capture_operation(CUstream stream, struct operation *operation)
{
	CUresult result = stream->capture ? CUDA_SUCCESS : forbid_implicit(stream);

	if (stream->capture && stream->capture->invalidated)
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (result != CUDA_ERROR_NOT_FOUND)
		operation_release(operation);
	return result;
}

CUresult capture_record_event(CUstream stream, CUevent event)
{
	struct capture *capture = stream->capture;

	if (!capture)
		return forbid_implicit(stream);
	if (capture->invalidated)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	fence_release(event->fence);
	event->fence = NULL;
	event->capture_id = capture->id;
	return CUDA_SUCCESS;
}

CUresult capture_wait_event(CUstream stream, CUevent event)
{
	struct capture *from = capture_of(event), *to = stream->capture;

	if (!event->capture_id && !to)
		return CUDA_ERROR_NOT_FOUND;
	if (to && to->invalidated)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (!event->capture_id) /* work outside the graph; an event that was never recorded is nothing to wait for */
		return event->fence ? invalidate(to, CUDA_ERROR_STREAM_CAPTURE_ISOLATION) : CUDA_SUCCESS;
	if (!from)
		return invalidate(to, CUDA_ERROR_INVALID_VALUE);
	if (from->invalidated)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (from == to)
		return CUDA_SUCCESS;
	invalidate(from, CUDA_SUCCESS);
	return to ? invalidate(to, CUDA_ERROR_STREAM_CAPTURE_MERGE) : CUDA_ERROR_NOT_SUPPORTED;
}

bool capture_active(CUstream stream)
{
	bool active;

	work_lock();
	active = stream->capture != NULL;
	work_unlock();
	return active;
}

void capture_abandon(CUstream stream)
{
	work_lock();
	if (stream->capture)
		end_it(stream->capture);
	work_unlock();
}

void captures_abandon(CUcontext context)
{
	work_lock();
	for (struct capture *capture = open_captures, *next; capture; capture = next) {
		next = capture->next;
		if (capture->origin->context == context)
			end_it(capture);
	}
	work_unlock();
}

/* The rule of cuThreadExchangeStreamCaptureMode.  */
static bool violates(const struct capture *capture)
{
	if (capture->invalidated || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return false;
	if (capture->thread == this_thread())
		return capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
	return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult capture_unsafe(void)
{
	CUresult result = CUDA_SUCCESS;

	work_lock();
	for (struct capture *capture = open_captures; capture; capture = capture->next)
		if (violates(capture))
			result = invalidate(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	work_unlock();
	return result;
}

static CUresult forbid(struct capture *capture, CUresult error)
{
	return invalidate(capture, capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : error);
}

CUresult capture_forbids(CUstream stream)
{
	struct capture *blocking;
	CUresult result = CUDA_SUCCESS;

	work_lock();
	blocking = stream->kind == STREAM_LEGACY ? capture_of_blocking(stream->context) : NULL;
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

	work_lock();
	if (event->capture_id) /* recorded in a capture that has ended, or in one that has not */
		result = capture_of(event) ? forbid(capture_of(event), CUDA_ERROR_CAPTURED_EVENT) : CUDA_ERROR_INVALID_VALUE;
	work_unlock();
	return result == CUDA_SUCCESS ? capture_unsafe() : result;
}

CUresult capture_forbids_context(CUcontext context)
{
	CUresult result = CUDA_SUCCESS;

	work_lock();
	for (struct capture *capture = open_captures; capture; capture = capture->next)
		if (capture->origin->context == context)
			result = invalidate(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
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

static CUresult begin(CUstream handle, int mode)
{
	CUstream stream;

	ENTER_CONTEXT("cuStreamBeginCapture", context);
	if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	refused_ = stream_of(context, handle, &stream);
	if (refused_ != CUDA_SUCCESS)
		return refused_;
	if (stream->kind == STREAM_LEGACY)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	work_lock();
	refused_ = stream->capture ? CUDA_ERROR_ILLEGAL_STATE : begin_in(stream, mode);
	work_unlock();
	return refused_;
}

SIM_API CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	return begin(stream, mode);
}

SIM_API CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
	return begin(PER_THREAD(stream), mode);
}

static CUresult end_locked(struct capture *capture, CUgraph *graph)
{
	CUresult result = CUDA_SUCCESS;

	if (!capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != this_thread())
		result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	else if (capture->invalidated)
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	else if (!(*graph = object_new(OBJECT_GRAPH, sizeof(**graph))))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	end_it(capture);
	return result;
}

static CUresult end(CUstream handle, CUgraph *graph)
{
	CUstream stream;

	ENTER_CONTEXT("cuStreamEndCapture", context);
	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = NULL;
	refused_ = stream_of(context, handle, &stream);
	if (refused_ != CUDA_SUCCESS)
		return refused_;
	work_lock();
	refused_ = end_locked(stream->capture, graph);
	work_unlock();
	return refused_;
}

SIM_API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	return end(stream, graph);
}

SIM_API CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
	return end(PER_THREAD(stream), graph);
}

SIM_API CUresult cuStreamIsCapturing(CUstream handle, int *status)
{
	struct capture *capture;
	CUstream stream;

	ENTER_CONTEXT("cuStreamIsCapturing", context);
	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	refused_ = stream_of(context, handle, &stream);
	if (refused_ != CUDA_SUCCESS)
		return refused_;
	work_lock();
	capture = stream->capture;
	if (stream->kind == STREAM_LEGACY && capture_of_blocking(stream->context))
		refused_ = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT; /* asking invalidates nothing */
	*status = !capture		 ? CU_STREAM_CAPTURE_STATUS_NONE
		  : capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
					 : CU_STREAM_CAPTURE_STATUS_ACTIVE;
	work_unlock();
	return refused_;
}

SIM_API CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status)
{
	return cuStreamIsCapturing(PER_THREAD(stream), status);
}

SIM_API CUresult cuGraphDestroy(CUgraph graph)
{
	ENTER("cuGraphDestroy");
	if (!object_is(graph, OBJECT_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	object_free(OBJECT_GRAPH, graph);
	return CUDA_SUCCESS;
}

/* The shim's hooks on them are called, and the program is told. */
SIM_API CUresult cuGraphInstantiateWithFlags(void **exec, CUgraph graph, unsigned long long flags)
{
	ENTER("cuGraphInstantiate");
	(void)exec, (void)graph, (void)flags;
	return CUDA_ERROR_NOT_SUPPORTED;
}

SIM_API CUresult cuGraphLaunch(void *exec, CUstream stream)
{
	ENTER("cuGraphLaunch");
	(void)exec, (void)stream;
	return CUDA_ERROR_NOT_SUPPORTED;
}

SIM_API CUresult cuGraphUpload(void *exec, CUstream stream)
{
	ENTER("cuGraphUpload");
	(void)exec, (void)stream;
	return CUDA_ERROR_NOT_SUPPORTED;
}
