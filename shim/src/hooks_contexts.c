/* Hooks on contexts: what goes with one, and room for a new one.  */
#include "asks.h"
#include "blocks.h"
#include "contexts.h"
#include "driver.h"
#include "hook.h"
#include "mover.h"
#include "peers.h"
#include "shim.h"
#include "tally.h"

/* What a new context may take: twice what one took of an H200 (620 MiB of 141 GiB), and GPUs of other sizes in
 * proportion, since it grows with their processors.  */
#define CONTEXT_OF_TOTAL 128
#define LEAST_CONTEXT_BYTES (2u << 20)

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

static bool primary_lives(CUdevice ordinal)
{
	unsigned int flags;
	int active = 0;

	return driver.cuDevicePrimaryCtxGetState(ordinal, &flags, &active) == CUDA_SUCCESS && active;
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

	contexts_ending();
	if (!is_primary(handle))
		drop_context(handle);
	result = ((CUresult(*)(CUcontext))real)(handle);
	contexts_ended();
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

	contexts_ending();
	primary_contexts_lock();
	drop_context(primary_of(ordinal));
	result = ((CUresult(*)(CUdevice))real)(ordinal);
	primary_contexts_unlock();
	contexts_ended();
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
	CUresult result;

	primary_contexts_lock();
	if (!shim_is_on() || !primary_lives(ordinal)) {
		primary_contexts_unlock();
		result = gate_enter(&pass, AFFINODE_CLASS_MODULE);
		if (result != CUDA_SUCCESS)
			return result;
		primary_contexts_lock();
	}
	result = ((CUresult(*)(CUcontext *, CUdevice))real)(context, ordinal);
	device = result == CUDA_SUCCESS && context && shim_is_on() ? device_known(ordinal) : NULL;
	if (device)
		device->primary = *context;
	primary_contexts_unlock();
	return result;
}

/* A context's creation met a full GPU. A program that begins there waits for room like any other; one that is interrupted
 * meanwhile sees the driver's own answer: nobody expects another one from a context's creation. CUDA_SUCCESS: try again.  */
static CUresult after_full_gpu(CUdevice ordinal, struct room_wait *wait)
{
	struct device *device = shim_is_on() ? device_known(ordinal) : NULL;
	uint64_t bytes;
	CUresult result;

	if (!device)
		return CUDA_ERROR_OUT_OF_MEMORY;
	bytes = device->total_bytes / CONTEXT_OF_TOTAL;
	if (bytes < LEAST_CONTEXT_BYTES)
		bytes = LEAST_CONTEXT_BYTES;
	result = ask_for_room(device, bytes, wait);
	return result == CUDA_ERROR_DEVICE_UNAVAILABLE ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

#define WITH_ROOM_FOR_CONTEXT(ordinal, attempt_once)                                                                \
	for (struct room_wait wait = {0};;) {                                                                       \
		CUresult result = (attempt_once);                                                                   \
		if (result == CUDA_ERROR_OUT_OF_MEMORY)                                                             \
			result = after_full_gpu((ordinal), &wait);                                                  \
		else                                                                                                \
			return result;                                                                              \
		if (result != CUDA_SUCCESS)                                                                         \
			return result;                                                                              \
	}

static CUresult on_cuDevicePrimaryCtxRetain(void *real, CUcontext *context, CUdevice ordinal)
{
	WITH_ROOM_FOR_CONTEXT(ordinal, retain_primary(real, context, ordinal))
}
HOOK(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice ordinal), context, ordinal)

/* Current now, and made known: work may run in it, on memory of others, before anything is allocated there.  */
static CUresult note_created(CUresult result)
{
	if (result == CUDA_SUCCESS && shim_is_on())
		context_current();
	return result;
}

/* Each form takes the flags, and what came before them later, at another place.  */
static CUresult create(void *real, CUcontext *context, unsigned int flags, CUdevice ordinal)
{
	GATE_PASS(pass);
	CUresult result = gate_enter(&pass, AFFINODE_CLASS_MODULE);

	return result != CUDA_SUCCESS ? result
				      : note_created(((CUresult(*)(CUcontext *, unsigned int, CUdevice))real)(
						context, flags, ordinal));
}

static CUresult on_cuCtxCreate_v2(void *real, CUcontext *context, unsigned int flags, CUdevice ordinal)
{
	WITH_ROOM_FOR_CONTEXT(ordinal, create(real, context, flags, ordinal))
}
HOOK(cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice ordinal), context, flags, ordinal)

static CUresult create_with_affinity(void *real, CUcontext *context, void *affinity, int count, unsigned int flags,
				     CUdevice ordinal)
{
	GATE_PASS(pass);
	CUresult result = gate_enter(&pass, AFFINODE_CLASS_MODULE);

	return result != CUDA_SUCCESS ? result
				      : note_created(((CUresult(*)(CUcontext *, void *, int, unsigned int, CUdevice))real)(
						context, affinity, count, flags, ordinal));
}

static CUresult on_cuCtxCreate_v3(void *real, CUcontext *context, void *affinity, int count, unsigned int flags,
				  CUdevice ordinal)
{
	WITH_ROOM_FOR_CONTEXT(ordinal, create_with_affinity(real, context, affinity, count, flags, ordinal))
}
HOOK(cuCtxCreate_v3, (CUcontext * context, void *affinity, int count, unsigned int flags, CUdevice ordinal), context,
     affinity, count, flags, ordinal)

static CUresult create_with_parameters(void *real, CUcontext *context, void *parameters, unsigned int flags,
				       CUdevice ordinal)
{
	GATE_PASS(pass);
	CUresult result = gate_enter(&pass, AFFINODE_CLASS_MODULE);

	return result != CUDA_SUCCESS ? result
				      : note_created(((CUresult(*)(CUcontext *, void *, unsigned int, CUdevice))real)(
						context, parameters, flags, ordinal));
}

static CUresult on_cuCtxCreate_v4(void *real, CUcontext *context, void *parameters, unsigned int flags, CUdevice ordinal)
{
	WITH_ROOM_FOR_CONTEXT(ordinal, create_with_parameters(real, context, parameters, flags, ordinal))
}
HOOK(cuCtxCreate_v4, (CUcontext * context, void *parameters, unsigned int flags, CUdevice ordinal), context, parameters,
     flags, ordinal)

/* The last release destroys the context; before that it only counts down.  */
static CUresult on_cuDevicePrimaryCtxRelease(void *real, CUdevice ordinal)
{
	GATE_PASS(pass);
	bool held = mover_hold(&pass);
	CUcontext handle;
	unsigned int flags;
	int active = 1;
	CUresult result;

	contexts_ending();
	primary_contexts_lock();
	handle = primary_of(ordinal);
	result = ((CUresult(*)(CUdevice))real)(ordinal);
	if (result == CUDA_SUCCESS && handle &&
	    driver.cuDevicePrimaryCtxGetState(ordinal, &flags, &active) == CUDA_SUCCESS && !active) {
		drop_context(handle);
		device_known(ordinal)->primary = NULL; /* another context may have that handle next */
	}
	primary_contexts_unlock();
	contexts_ended();
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
