/* cuStreamBeginCapture and what belongs to it.  */
#include "driver/api.h"
#include "driver/streams_default.h"
#include "graph/capture_state.h"

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
	refused_ = stream->capture ? CUDA_ERROR_ILLEGAL_STATE : capture_begin(stream, mode);
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

/* Whether the other streams' last nodes come before the origin's.  */
static bool joined(const struct capture *capture)
{
	uint64_t mark = graph_mark(capture->origin->tips, capture->origin->tip_count);

	for (unsigned i = 1; i < capture->stream_count; i++)
		for (unsigned tip = 0; tip < capture->streams[i]->tip_count; tip++)
			if (capture->streams[i]->tips[tip]->mark != mark)
				return false;
	return true;
}

static CUresult end_locked(CUstream stream, CUgraph *graph)
{
	struct capture *capture = stream->capture;
	CUresult result = CUDA_SUCCESS;

	if (!capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (capture->origin != stream) {
		capture->invalidated = true;
		return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	}
	if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != capture_this_thread())
		result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	else if (capture->invalidated)
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	else if (!joined(capture))
		result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	if (result == CUDA_SUCCESS) {
		*graph = capture->graph;
		capture->graph = NULL;
	}
	capture_end(capture);
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
	refused_ = end_locked(stream, graph);
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
