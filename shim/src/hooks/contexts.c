/* Hooks on contexts: what goes with one, and room for a new one.  */
#include <stdatomic.h>

#include "driver/real_driver.h"
#include "gpu/contexts.h"
#include "hooks/gated_hook.h"
#include "memory/blocks/block.h"
#include "memory/peer_access.h"
#include "memory/unmovable_bytes.h"
#include "mover/mover.h"
#include "state/shim_state.h"

/* What a new context may take: twice what one took of an H200 (620 MiB of 141 GiB), and GPUs of other sizes in
 * proportion, since it grows with their processors.  */
#define CONTEXT_OF_TOTAL 128
#define LEAST_CONTEXT_BYTES (2u << 20)

/* Forget all that belonged to a context which ended.  */
static void drop_context(CUcontext handle)
{
	const struct context *known = context_known(handle);

	if (handle) {
		blocks_drop_context(handle);
		peers_drop_context(handle);
		if (known)
			unmovable_drop_context(known);
		context_forget(handle);
	}
}

/* Return the primary context of `ordinal` as it was last seen; NULL if it never was.  */
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

/* Forget a primary context that has ended: another context may have its handle next.  */
static void forget_ended_primary(CUdevice ordinal)
{
	if (primary_of(ordinal) && !primary_lives(ordinal))
		device_known(ordinal)->primary = NULL;
}

static bool is_primary(CUcontext handle)
{
	for (int i = 0; i < device_count_known(); i++)
		if (device_at(i)->primary == handle)
			return true;
	return false;
}

static bool is_green(CUcontext handle)
{
	const struct context *context = context_known(handle);

	return context && context->green;
}

/* Begin a call that ends contexts. It may be made at exit, where a wait for the GPU would hang, so it waits for a move under way
 * only.  */
static bool begin_end(struct gate_pass *pass)
{
	bool held = mover_hold(pass);

	contexts_ending();
	return held;
}

static void end_end(bool held)
{
	contexts_ended();
	if (held)
		mover_let_go();
}

/* A primary or a green
 * context is not ended this way: the driver refuses.  */
static CUresult on_cuCtxDestroy(void *real, CUcontext handle)
{
	GATE_PASS(pass);
	bool held = begin_end(&pass);
	CUresult result;

	if (!is_primary(handle) && !is_green(handle))
		drop_context(handle);
	result = ((CUresult(*)(CUcontext))real)(handle);
	end_end(held);
	return result;
}
HOOK(cuCtxDestroy, (CUcontext handle), handle)

static CUresult on_cuCtxAttach(void *real, CUcontext *context, unsigned int flags)
{
	CUresult result = ((CUresult(*)(CUcontext *, unsigned int))real)(context, flags);
	struct context *own = result == CUDA_SUCCESS ? context_current_own() : NULL;

	if (own)
		atomic_fetch_add(&own->attached, 1);
	return result;
}
HOOK(cuCtxAttach, (CUcontext * context, unsigned int flags), context, flags)

/* A context is destroyed once it was detached as often as it was attached, and once more for its creation.  */
static void detached(CUcontext handle)
{
	struct context *context = context_known(handle);
	unsigned attached = context ? atomic_load(&context->attached) : 0;

	while (attached && !atomic_compare_exchange_weak(&context->attached, &attached, attached - 1))
		;
	if (!attached && !is_primary(handle) && !is_green(handle))
		drop_context(handle);
}

static CUresult on_cuCtxDetach(void *real, CUcontext handle)
{
	GATE_PASS(pass);
	bool held = begin_end(&pass);
	CUresult result;

	result = ((CUresult(*)(CUcontext))real)(handle);
	if (result == CUDA_SUCCESS)
		detached(handle);
	end_end(held);
	return result;
}
HOOK(cuCtxDetach, (CUcontext handle), handle)

static CUresult on_cuDevicePrimaryCtxReset(void *real, CUdevice ordinal)
{
	GATE_PASS(pass);
	bool held = begin_end(&pass);
	CUresult result;

	primary_contexts_lock();
	drop_context(primary_of(ordinal));
	result = ((CUresult(*)(CUdevice))real)(ordinal);
	forget_ended_primary(ordinal);
	primary_contexts_unlock();
	end_end(held);
	return result;
}
HOOK(cuDevicePrimaryCtxReset, (CUdevice ordinal), ordinal)

/* Retain a primary context. One that lives is only counted, which every library with a runtime of its own does; a new one takes
 * 0.6 GiB of the GPU, and waits in the queue.  */
static CUresult retain_primary(void *real, CUcontext *context, CUdevice ordinal)
{
	GATE_PASS(pass);
	struct device *device;
	CUresult result;

	primary_contexts_lock();
	if (!shim_is_on() || !primary_lives(ordinal)) {
		primary_contexts_unlock();
		result = gate_enter_as(&pass, AFFINODE_CLASS_MODULE, "cuDevicePrimaryCtxRetain");
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

/* Wait for room after a context's creation met a full GPU. Return CUDA_SUCCESS to try again. A program that is interrupted
 * meanwhile gets the driver's own answer: no caller expects another one from a context's creation.  */
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

ROOM_HOOK(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice ordinal), (context, ordinal), retain_primary,
	  after_full_gpu(ordinal, &wait))

/* Make a context known that was created and is current: work may run in it, on other contexts' memory, before anything is
 * allocated there.  */
static CUresult note_created(CUresult result)
{
	if (result == CUDA_SUCCESS && shim_is_on())
		context_current();
	return result;
}

/* Create a context by any of the driver's forms, which take the flags at different places.  */
static CUresult create(void *real, CUcontext *context, unsigned int flags, CUdevice ordinal)
{
	GATE_PASS(pass);
	CUresult result = gate_enter_as(&pass, AFFINODE_CLASS_MODULE, "cuCtxCreate");

	return result != CUDA_SUCCESS ? result
				      : note_created(((CUresult(*)(CUcontext *, unsigned int, CUdevice))real)(
						context, flags, ordinal));
}

ROOM_HOOK(cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice ordinal), (context, flags, ordinal), create,
	  after_full_gpu(ordinal, &wait))

static CUresult create_with_affinity(void *real, CUcontext *context, void *affinity, int count, unsigned int flags,
				     CUdevice ordinal)
{
	GATE_PASS(pass);
	CUresult result = gate_enter_as(&pass, AFFINODE_CLASS_MODULE, "cuCtxCreate_v3");

	return result != CUDA_SUCCESS ? result
				      : note_created(((CUresult(*)(CUcontext *, void *, int, unsigned int, CUdevice))real)(
						context, affinity, count, flags, ordinal));
}

ROOM_HOOK(cuCtxCreate_v3, (CUcontext * context, void *affinity, int count, unsigned int flags, CUdevice ordinal),
	  (context, affinity, count, flags, ordinal), create_with_affinity, after_full_gpu(ordinal, &wait))

static CUresult create_with_parameters(void *real, CUcontext *context, void *parameters, unsigned int flags,
				       CUdevice ordinal)
{
	GATE_PASS(pass);
	CUresult result = gate_enter_as(&pass, AFFINODE_CLASS_MODULE, "cuCtxCreate_v4");

	return result != CUDA_SUCCESS ? result
				      : note_created(((CUresult(*)(CUcontext *, void *, unsigned int, CUdevice))real)(
						context, parameters, flags, ordinal));
}

ROOM_HOOK(cuCtxCreate_v4, (CUcontext * context, void *parameters, unsigned int flags, CUdevice ordinal),
	  (context, parameters, flags, ordinal), create_with_parameters, after_full_gpu(ordinal, &wait))

/* Note a release of a primary context: the last one destroys it, those before only count down.  */
static void primary_released(CUdevice ordinal, CUcontext handle)
{
	unsigned int flags;
	int active = 1;

	if (driver.cuDevicePrimaryCtxGetState(ordinal, &flags, &active) != CUDA_SUCCESS || active)
		return;
	drop_context(handle);
	forget_ended_primary(ordinal);
}

static CUresult on_cuDevicePrimaryCtxRelease(void *real, CUdevice ordinal)
{
	GATE_PASS(pass);
	bool held = begin_end(&pass);
	CUcontext handle;
	CUresult result;

	primary_contexts_lock();
	handle = primary_of(ordinal);
	result = ((CUresult(*)(CUdevice))real)(ordinal);
	if (result == CUDA_SUCCESS && handle)
		primary_released(ordinal, handle);
	primary_contexts_unlock();
	end_end(held);
	return result;
}
HOOK(cuDevicePrimaryCtxRelease, (CUdevice ordinal), ordinal)

/* Make a green context known. It retains its device's primary context, which has the memory that is made in either; that one's
 * handle is found by retaining it once more for a moment.  */
static void note_green(CUcontext handle, const void *green)
{
	CUcontext primary = NULL, popped;
	struct device *device = NULL;
	CUdevice ordinal;

	if (!shim_is_on() || context_known(handle) || !driver.cuDevicePrimaryCtxRetain ||
	    !driver.cuDevicePrimaryCtxRelease || driver.cuCtxPushCurrent(handle) != CUDA_SUCCESS)
		return;
	if (driver.cuCtxGetDevice(&ordinal) == CUDA_SUCCESS)
		device = device_known(ordinal);
	driver.cuCtxPopCurrent(&popped);
	if (!device)
		return;
	primary_contexts_lock();
	if (driver.cuDevicePrimaryCtxRetain(&primary, ordinal) == CUDA_SUCCESS) {
		driver.cuDevicePrimaryCtxRelease(ordinal);
		device->primary = primary;
		context_note_green(handle, green, device, primary);
	}
	primary_contexts_unlock();
}

static CUresult create_green(void *real, void **green, void *resources, CUdevice ordinal, unsigned int flags)
{
	GATE_PASS(pass);
	CUresult result = gate_enter_as(&pass, AFFINODE_CLASS_MODULE, "cuGreenCtxCreate");
	CUcontext handle;

	if (result != CUDA_SUCCESS)
		return result;
	result = ((CUresult(*)(void **, void *, CUdevice, unsigned int))real)(green, resources, ordinal, flags);
	if (result == CUDA_SUCCESS && shim_is_on() && driver.cuCtxFromGreenCtx &&
	    driver.cuCtxFromGreenCtx(&handle, *green) == CUDA_SUCCESS)
		note_green(handle, *green);
	return result;
}

ROOM_HOOK(cuGreenCtxCreate, (void **green, void *resources, CUdevice ordinal, unsigned int flags),
	  (green, resources, ordinal, flags), create_green, after_full_gpu(ordinal, &wait))

static CUresult on_cuCtxFromGreenCtx(void *real, CUcontext *context, void *green)
{
	CUresult result = ((CUresult(*)(CUcontext *, void *))real)(context, green);

	if (result == CUDA_SUCCESS)
		note_green(*context, green);
	return result;
}
HOOK(cuCtxFromGreenCtx, (CUcontext * context, void *green), context, green)

/* What was made in a green context stays, unless it was the last to use the primary context.  */
static CUresult on_cuGreenCtxDestroy(void *real, void *green)
{
	GATE_PASS(pass);
	bool held = begin_end(&pass);
	struct context *context, *home = NULL;
	CUresult result;

	primary_contexts_lock();
	result = ((CUresult(*)(void *))real)(green);
	while (result == CUDA_SUCCESS && (context = context_of_green(green)) != NULL) {
		home = context->home;
		context_forget(context->handle);
	}
	if (home && home->handle)
		primary_released(home->device->ordinal, home->handle);
	primary_contexts_unlock();
	end_end(held);
	return result;
}
HOOK(cuGreenCtxDestroy, (void *green), green)

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

/* It only takes mappings away, so it does not wait for the GPU.  */
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
