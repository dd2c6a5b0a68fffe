/* Hooks on streams, captures and contexts: the shim must know them to see that the GPU is idle.  */
#include "asks.h"
#include "blocks.h"
#include "contexts.h"
#include "driver.h"
#include "hook.h"
#include "mover.h"
#include "peers.h"
#include "shim.h"
#include "tally.h"

#define CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD 908
/* What a new context may take: twice what one took of an H200 (620 MiB of 141 GiB), and GPUs of other sizes in
 * proportion, since it grows with their processors.  */
#define CONTEXT_OF_TOTAL 128
#define LEAST_CONTEXT_BYTES (2u << 20)

static CUresult note_stream(CUresult result, const CUstream *stream)
{
	if (result == CUDA_SUCCESS && stream && shim_is_on())
		stream_note(*stream);
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
	return note_stream(((CUresult(*)(CUstream *, void *, unsigned int, int))real)(stream, green, flags, priority),
			   stream);
}
HOOK(cuGreenCtxStreamCreate, (CUstream * stream, void *green, unsigned int flags, int priority), stream, green, flags,
     priority)

/* Forgotten before the driver destroys it, so that the idle probe never holds a dead handle.  */
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

/* Every answer but "wrong thread" ends the capture, an invalidated one too.  */
static CUresult on_cuStreamEndCapture(void *real, CUstream stream, CUgraph *graph)
{
	CUresult result = ((CUresult(*)(CUstream, CUgraph *))real)(stream, graph);

	if (result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
		capture_closed(stream);
	return result;
}
HOOK(cuStreamEndCapture, (CUstream stream, CUgraph *graph), stream, graph)

/* What belonged to a context goes with it.  */
static void drop_context(CUcontext handle)
{
	const struct context *known = context_known(handle);

	if (handle) {
		blocks_drop_context(handle);
		peers_drop_context(handle);
		if (known)
			tally_drop_context(known);
		context_forget(handle);
	}
}

/* The primary context of `ordinal` as far as it was seen; NULL: never.  */
static CUcontext primary_of(CUdevice ordinal)
{
	struct device *device = shim_is_on() ? device_known(ordinal) : NULL;

	return device ? device->primary : NULL;
}

static bool is_primary(CUcontext handle)
{
	for (int i = 0; i < device_count_known(); i++)
		if (device_at(i)->primary == handle)
			return true;
	return false;
}

/* It runs at exit, where waiting for a GPU would hang; only a move under way is waited for. A primary context is not ended
 * this way, and the driver says so.  */
static CUresult on_cuCtxDestroy(void *real, CUcontext handle)
{
	GATE_PASS(pass);
	bool held = mover_hold(&pass);
	CUresult result;

	if (!is_primary(handle))
		drop_context(handle);
	result = ((CUresult(*)(CUcontext))real)(handle);
	if (held)
		mover_let_go();
	return result;
}
HOOK(cuCtxDestroy, (CUcontext handle), handle)

static CUresult on_cuDevicePrimaryCtxReset(void *real, CUdevice ordinal)
{
	GATE_PASS(pass);
	bool held = mover_hold(&pass);
	CUresult result;

	drop_context(primary_of(ordinal));
	result = ((CUresult(*)(CUdevice))real)(ordinal);
	if (held)
		mover_let_go();
	return result;
}
HOOK(cuDevicePrimaryCtxReset, (CUdevice ordinal), ordinal)

/* Where the primary context lives it is only counted, which every library with its own runtime does; where it does not,
 * it takes 0.6 GiB of the device and waits its turn.  */
static CUresult retain_primary(void *real, CUcontext *context, CUdevice ordinal)
{
	GATE_PASS(pass);
	struct device *device;
	unsigned int flags;
	CUresult result;
	int active = 0;

	if (!shim_is_on() || driver.cuDevicePrimaryCtxGetState(ordinal, &flags, &active) != CUDA_SUCCESS || !active) {
		result = gate_enter(&pass, AFFINODE_CLASS_MODULE);
		if (result != CUDA_SUCCESS)
			return result;
	}
	result = ((CUresult(*)(CUcontext *, CUdevice))real)(context, ordinal);
	device = result == CUDA_SUCCESS && context && shim_is_on() ? device_known(ordinal) : NULL;
	if (device)
		device->primary = *context;
	return result;
}

/* A program that begins on a full GPU waits for room like any other. One that is interrupted meanwhile sees the driver's own
 * answer: nobody expects another one from a context's creation.  */
static CUresult on_cuDevicePrimaryCtxRetain(void *real, CUcontext *context, CUdevice ordinal)
{
	for (unsigned attempt = 0;; attempt++) {
		CUresult result = retain_primary(real, context, ordinal);
		struct device *device;
		uint64_t bytes;

		if (result != CUDA_ERROR_OUT_OF_MEMORY || !shim_is_on())
			return result;
		device = device_known(ordinal);
		if (!device)
			return result;
		bytes = device->total_bytes / CONTEXT_OF_TOTAL;
		if (bytes < LEAST_CONTEXT_BYTES)
			bytes = LEAST_CONTEXT_BYTES;
		result = ask_for_room(device, bytes, attempt);
		if (result != CUDA_SUCCESS)
			return result == CUDA_ERROR_DEVICE_UNAVAILABLE ? CUDA_ERROR_OUT_OF_MEMORY : result;
	}
}
HOOK(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice ordinal), context, ordinal)

/* The last release destroys the context; before that it only counts down.  */
static CUresult on_cuDevicePrimaryCtxRelease(void *real, CUdevice ordinal)
{
	GATE_PASS(pass);
	CUcontext handle = primary_of(ordinal);
	bool held = mover_hold(&pass);
	unsigned int flags;
	int active = 1;
	CUresult result;

	result = ((CUresult(*)(CUdevice))real)(ordinal);
	if (result == CUDA_SUCCESS && handle &&
	    driver.cuDevicePrimaryCtxGetState(ordinal, &flags, &active) == CUDA_SUCCESS && !active)
		drop_context(handle);
	if (held)
		mover_let_go();
	return result;
}
HOOK(cuDevicePrimaryCtxRelease, (CUdevice ordinal), ordinal)

/* The current context's device may now reach the peer context's memory: backed blocks must be told one by one.  */
static CUresult on_cuCtxEnablePeerAccess(void *real, CUcontext peer, unsigned int flags)
{
	GATE_PASS(pass);
	CUresult result = gate_enter(&pass, AFFINODE_CLASS_MODULE);
	struct context *here;
	CUcontext popped;

	if (result != CUDA_SUCCESS)
		return result;
	result = ((CUresult(*)(CUcontext, unsigned int))real)(peer, flags);
	if (result != CUDA_SUCCESS || !shim_is_on())
		return result;
	here = context_current();
	if (here && driver.cuCtxPushCurrent(peer) == CUDA_SUCCESS) {
		struct context *there = context_current();

		driver.cuCtxPopCurrent(&popped);
		if (there)
			peers_enabled(here, there);
	}
	return result;
}
HOOK(cuCtxEnablePeerAccess, (CUcontext peer, unsigned int flags), peer, flags)

/* Only takes mappings away, so it waits for no GPU.  */
static CUresult on_cuCtxDisablePeerAccess(void *real, CUcontext peer)
{
	GATE_PASS(pass);
	bool held = mover_hold(&pass);
	CUresult result = ((CUresult(*)(CUcontext))real)(peer);
	CUcontext here = NULL;

	if (result == CUDA_SUCCESS && shim_is_on() && driver.cuCtxGetCurrent(&here) == CUDA_SUCCESS)
		peers_disabled(here, peer);
	if (held)
		mover_let_go();
	return result;
}
HOOK(cuCtxDisablePeerAccess, (CUcontext peer), peer)
