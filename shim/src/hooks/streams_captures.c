/* Hooks on streams and captures: the shim must know them to see that the GPU is idle.  */
#include "driver/hook.h"
#include "gate/gate.h"
#include "gpu/contexts.h"
#include "state/shim_state.h"

#define CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD 908

static CUresult note_stream(CUresult result, const CUstream *stream)
{
	if (result == CUDA_SUCCESS && stream && shim_is_on())
		stream_note(*stream, context_current_own());
	return result;
}

static CUresult on_cuStreamCreate(void *real, CUstream *stream, unsigned int flags)
{
	GATE_PASS(pass);
	CUresult result = gate_enter(&pass, AFFINODE_CLASS_ALLOC);

	if (result != CUDA_SUCCESS)
		return result;
	return note_stream(((CUresult(*)(CUstream *, unsigned int))real)(stream, flags), stream);
}
HOOK(cuStreamCreate, (CUstream * stream, unsigned int flags), stream, flags)

static CUresult on_cuStreamCreateWithPriority(void *real, CUstream *stream, unsigned int flags, int priority)
{
	GATE_PASS(pass);
	CUresult result = gate_enter(&pass, AFFINODE_CLASS_ALLOC);

	if (result != CUDA_SUCCESS)
		return result;
	return note_stream(((CUresult(*)(CUstream *, unsigned int, int))real)(stream, flags, priority), stream);
}
HOOK(cuStreamCreateWithPriority, (CUstream * stream, unsigned int flags, int priority), stream, flags, priority)

static CUresult on_cuGreenCtxStreamCreate(void *real, CUstream *stream, void *green, unsigned int flags, int priority)
{
	GATE_PASS(pass);
	CUresult result = gate_enter(&pass, AFFINODE_CLASS_ALLOC);

	if (result != CUDA_SUCCESS)
		return result;
	result = ((CUresult(*)(CUstream *, void *, unsigned int, int))real)(stream, green, flags, priority);
	if (result == CUDA_SUCCESS && stream && shim_is_on())
		stream_note(*stream, context_of_green(green));
	return result;
}
HOOK(cuGreenCtxStreamCreate, (CUstream * stream, void *green, unsigned int flags, int priority), stream, green, flags,
     priority)

/* The stream is forgotten before the driver destroys it, so that the mover never asks about a dead handle.  */
static CUresult on_cuStreamDestroy(void *real, CUstream stream)
{
	stream_forget(stream);
	return ((CUresult(*)(CUstream))real)(stream);
}
HOOK(cuStreamDestroy, (CUstream stream), stream)

static CUresult on_cuStreamBeginCapture(void *real, CUstream stream, int mode)
{
	GATE_PASS(pass);
	CUresult result = gate_enter(&pass, AFFINODE_CLASS_LAUNCH);

	if (result != CUDA_SUCCESS)
		return result;
	capture_opening(stream);
	result = ((CUresult(*)(CUstream, int))real)(stream, mode);
	if (result != CUDA_SUCCESS)
		capture_closed(stream);
	return result;
}
HOOK(cuStreamBeginCapture, (CUstream stream, int mode), stream, mode)

static CUresult on_cuStreamBeginCaptureToGraph(void *real, CUstream stream, CUgraph graph, const void *dependencies,
					       const void *data, size_t count, int mode)
{
	GATE_PASS(pass);
	CUresult result = gate_enter(&pass, AFFINODE_CLASS_LAUNCH);

	if (result != CUDA_SUCCESS)
		return result;
	capture_opening(stream);
	result = ((CUresult(*)(CUstream, CUgraph, const void *, const void *, size_t, int))real)(
		stream, graph, dependencies, data, count, mode);
	if (result != CUDA_SUCCESS)
		capture_closed(stream);
	return result;
}
HOOK(cuStreamBeginCaptureToGraph,
     (CUstream stream, CUgraph graph, const void *dependencies, const void *data, size_t count, int mode), stream,
     graph, dependencies, data, count, mode)

static CUresult on_cuStreamBeginRecaptureToGraph(void *real, CUstream stream, int mode, CUgraph graph, void *callback,
						 void *data)
{
	GATE_PASS(pass);
	CUresult result = gate_enter(&pass, AFFINODE_CLASS_LAUNCH);

	if (result != CUDA_SUCCESS)
		return result;
	capture_opening(stream);
	result = ((CUresult(*)(CUstream, int, CUgraph, void *, void *))real)(stream, mode, graph, callback, data);
	if (result != CUDA_SUCCESS)
		capture_closed(stream);
	return result;
}
HOOK(cuStreamBeginRecaptureToGraph, (CUstream stream, int mode, CUgraph graph, void *callback, void *data), stream,
     mode, graph, callback, data)

static CUresult on_cuStreamBeginCaptureToCig(void *real, CUstream stream, void *parameters)
{
	GATE_PASS(pass);
	CUresult result = gate_enter(&pass, AFFINODE_CLASS_LAUNCH);

	if (result != CUDA_SUCCESS)
		return result;
	capture_opening(stream);
	result = ((CUresult(*)(CUstream, void *))real)(stream, parameters);
	if (result != CUDA_SUCCESS)
		capture_closed(stream);
	return result;
}
HOOK(cuStreamBeginCaptureToCig, (CUstream stream, void *parameters), stream, parameters)

static CUresult on_cuStreamEndCaptureToCig(void *real, CUstream stream)
{
	CUresult result = ((CUresult(*)(CUstream))real)(stream);

	if (result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
		capture_closed(stream);
	return result;
}
HOOK(cuStreamEndCaptureToCig, (CUstream stream), stream)

/* Every answer but "wrong thread" ends the capture, also one that was invalidated.  */
static CUresult on_cuStreamEndCapture(void *real, CUstream stream, CUgraph *graph)
{
	CUresult result = ((CUresult(*)(CUstream, CUgraph *))real)(stream, graph);

	if (result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
		capture_closed(stream);
	return result;
}
HOOK(cuStreamEndCapture, (CUstream stream, CUgraph *graph), stream, graph)
