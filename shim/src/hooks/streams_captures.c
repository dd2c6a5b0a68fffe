/* Hooks on streams and captures: the shim must know them to see that the GPU is idle.  */
#include "gpu/contexts.h"
#include "hooks/gated_hook.h"
#include "state/shim_state.h"

#define CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD 908

static CUresult note_stream(CUresult result, const CUstream *stream)
{
	if (result == CUDA_SUCCESS && stream && shim_is_on())
		stream_note(*stream, context_current_own());
	return result;
}

static CUresult note_green_stream(CUresult result, const CUstream *stream, const void *green)
{
	if (result == CUDA_SUCCESS && stream && shim_is_on())
		stream_note(*stream, context_of_green(green));
	return result;
}

GATED_HOOK(cuStreamCreate, ALLOC, (CUstream * stream, unsigned int flags), (stream, flags), NOTHING_BEFORE,
	   note_stream(called, stream))
GATED_HOOK(cuStreamCreateWithPriority, ALLOC, (CUstream * stream, unsigned int flags, int priority),
	   (stream, flags, priority), NOTHING_BEFORE, note_stream(called, stream))
GATED_HOOK(cuGreenCtxStreamCreate, ALLOC, (CUstream * stream, void *green, unsigned int flags, int priority),
	   (stream, green, flags, priority), NOTHING_BEFORE, note_green_stream(called, stream, green))

/* The stream is forgotten before the driver destroys it, so that the mover never asks about a dead handle.  */
static CUresult on_cuStreamDestroy(void *real, CUstream stream)
{
	stream_forget(stream);
	return ((CUresult(*)(CUstream))real)(stream);
}
HOOK(cuStreamDestroy, (CUstream stream), stream)

static CUresult begun(CUresult result, CUstream stream)
{
	if (result != CUDA_SUCCESS)
		capture_closed(stream);
	return result;
}

GATED_HOOK(cuStreamBeginCapture, LAUNCH, (CUstream stream, int mode), (stream, mode), capture_opening(stream),
	   begun(called, stream))
GATED_HOOK(cuStreamBeginCaptureToGraph, LAUNCH,
	   (CUstream stream, CUgraph graph, const void *dependencies, const void *data, size_t count, int mode),
	   (stream, graph, dependencies, data, count, mode), capture_opening(stream), begun(called, stream))
GATED_HOOK(cuStreamBeginRecaptureToGraph, LAUNCH, (CUstream stream, int mode, CUgraph graph, void *callback, void *data),
	   (stream, mode, graph, callback, data), capture_opening(stream), begun(called, stream))
GATED_HOOK(cuStreamBeginCaptureToCig, LAUNCH, (CUstream stream, void *parameters), (stream, parameters),
	   capture_opening(stream), begun(called, stream))

/* Every answer but "wrong thread" ends the capture, also one that was invalidated.  */
static CUresult ended(CUresult result, CUstream stream)
{
	if (result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
		capture_closed(stream);
	return result;
}

static CUresult on_cuStreamEndCaptureToCig(void *real, CUstream stream)
{
	return ended(((CUresult(*)(CUstream))real)(stream), stream);
}
HOOK(cuStreamEndCaptureToCig, (CUstream stream), stream)

static CUresult on_cuStreamEndCapture(void *real, CUstream stream, CUgraph *graph)
{
	return ended(((CUresult(*)(CUstream, CUgraph *))real)(stream, graph), stream);
}
HOOK(cuStreamEndCapture, (CUstream stream, CUgraph *graph), stream, graph)
