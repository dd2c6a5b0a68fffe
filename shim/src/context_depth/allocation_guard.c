/* Three things:
 * - A process that takes much of a device's memory shares the GPU's lock meanwhile, so that a process that holds it
 *   finds the room that it has seen (gpu_lock.h).
 * - A process that shares GPU memory with other processes or APIs is never parked at context depth.
 * - Calls that make, change or destroy contexts change what threads have current behind the shadows' back.  */
#include "context_depth/context_depth.h"

#include <errno.h>
#include <string.h>

#include "context_depth/internal.h"
#include "context_depth/shadow/shadow.h"
#include "driver/entry_point.h"
#include "driver/hook.h"
#include "driver/real_driver.h"
#include "driver/thunk_pool.h"
#include "gpu/contexts.h"
#include "gpu/gpu_lock.h"
#include "memory/blocks/block.h"
#include "state/shim_state.h"

/* A context comes back in a fifth of a second, its memory in one.  */
#define SHARE_NS (10 * S_NS)
/* Left free by processes that pass a lock that its holder does not let go of, being stopped: a context needs no
 * more, beside what is spared for it (internal.h).  */
#define LEFT_FOR_HOLDER (2 * GIB)

#define TAKES_TRAITS                                                                                              \
	(TRAIT_TAKES_BYTES | TRAIT_TAKES_DESCRIBED | TRAIT_TAKES_SOME | TRAIT_ADDS_NODES | TRAIT_LAUNCHES_GRAPH |    \
	 TRAIT_TAKES_CONTEXT)

static _Atomic bool graphs_take_memory; /* some may */

/* The devices whose locks were shared, as bits; false: one could not be had.  */
static bool share_all(uint64_t *shared)
{
	bool had = true;

	*shared = 0;
	for (int i = 0; i < device_count_known() && i < 64; i++) {
		int result = gpu_share(device_at(i)->uuid, SHARE_NS);

		if (result == 0)
			*shared |= 1ull << i;
		had = had && result != -EBUSY;
	}
	return had;
}

static void unshare_all(uint64_t shared)
{
	for (int i = 0; i < 64; i++)
		if (shared & (1ull << i))
			gpu_unshare(device_at(i)->uuid);
}

/* Return the device whose memory the call takes; NULL if that is not known, or it takes none.  */
static struct device *device_meant(unsigned what, const CUmemAllocationProp *prop)
{
	struct context *context;

	if (what & TRAIT_TAKES_DESCRIBED)
		return prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? device_known(prop->location.id)
										  : NULL;
	context = context_current();
	return context ? context->device : NULL;
}

/* What is allocated while a stream is captured becomes a node of the graph.  */
static void note_graphs(unsigned what)
{
	if ((what & TRAIT_ADDS_NODES) || ((what & TRAIT_TAKES_BYTES) && captures_open()))
		atomic_store(&graphs_take_memory, true);
}

static bool takes_much(unsigned what, uint64_t bytes)
{
	if (what & (TRAIT_TAKES_BYTES | TRAIT_TAKES_DESCRIBED))
		return bytes >= BACKED_FROM_BYTES;
	if (what & TRAIT_LAUNCHES_GRAPH)
		return atomic_load_explicit(&graphs_take_memory, memory_order_relaxed);
	return what & (TRAIT_TAKES_CONTEXT | TRAIT_TAKES_SOME);
}

/* Share the lock of the device that the call means, or, where that is not known, those of all devices. Return false if one
 * could not be had.  */
static bool share_for(unsigned what, uint64_t bytes, const CUmemAllocationProp *prop, uint64_t *shared)
{
	struct device *device;
	int result;

	*shared = 0;
	if (!takes_much(what, bytes) || !shim_is_on() || !gpu_locks_are_used())
		return true;
	if (what & TRAIT_TAKES_CONTEXT)
		return share_all(shared);
	device = device_meant(what, prop);
	result = device ? gpu_share(device->uuid, SHARE_NS) : -ENOENT;
	if (result == 0)
		*shared = 1ull << device_index(device);
	return result != -EBUSY;
}

static void note(unsigned what, bool done)
{
	if ((what & TRAIT_SHARES) && done)
		checkpoint_refuse(REASON_SHARES_MEMORY);
	if (what & TRAIT_CHANGES_CONTEXTS)
		shadows_forget_contexts();
}

/* Return whether an allocation that did not get the lock leaves enough for the process that holds it. That process looks again
 * before it counts on the room that it has seen, but cannot while the driver restores it: for that time there must be memory
 * left.  */
static bool leaves_enough(unsigned what, uint64_t bytes)
{
	size_t free_bytes, total;

	return !(what & (TRAIT_TAKES_BYTES | TRAIT_TAKES_DESCRIBED)) ||
	       driver.cuMemGetInfo(&free_bytes, &total) != CUDA_SUCCESS ||
	       (free_bytes >= LEFT_FOR_HOLDER && free_bytes - LEFT_FOR_HOLDER >= bytes);
}

static W call_int(const struct thunk_target *target, INT_PARAMETERS)
{
	WITHOUT_CANCELLATION();
	uint64_t shared;
	W result;

	note_graphs(target->what);
	gpu_lock_in_the_way = !share_for(target->what, a1, (const CUmemAllocationProp *)a2, &shared) && !leaves_enough(target->what, a1);
	if (gpu_lock_in_the_way) {
		unshare_all(shared);
		return CUDA_ERROR_OUT_OF_MEMORY; /* which asks for room, and is tried again */
	}
	result = ((int_fn)target->real)(INT_ARGUMENTS);
	unshare_all(shared);
	note(target->what, (CUresult)result == CUDA_SUCCESS);
	return result;
}

static W call_wide(const struct thunk_target *target, WIDE_PARAMETERS)
{
	W result = ((wide_fn)target->real)(WIDE_ARGUMENTS);

	note(target->what, (CUresult)result == CUDA_SUCCESS);
	return result;
}

INT_POOL(TIMES_64)
WIDE_POOL(TIMES_16)

void *around_for(const char *name, bool wide, void *real)
{
	unsigned what = entry_point_traits(name) & (TAKES_TRAITS | TRAIT_SHARES | TRAIT_CHANGES_CONTEXTS);
	void *thunk;

	if (!checkpoint_is_asked())
		what &= ~(unsigned)(TRAIT_SHARES | TRAIT_CHANGES_CONTEXTS);
	if (!what)
		return real;
	thunk = thunk_bind(wide ? &wide_pool : &int_pool, real, what, NULL);
	if (!thunk)
		checkpoint_refuse(REASON_WRAPPERS_USED_UP);
	return thunk ? thunk : real;
}

/* A driver that lacks an entry point has nothing to be wrapped.  */
#define WRAP_OWN(name)                                                      \
	do {                                                                \
		void *real, *wrapped;                                       \
		memcpy(&real, &driver.name, sizeof(real));                  \
		wrapped = real ? around_for(#name, false, real) : NULL;     \
		memcpy(&driver.name, &wrapped, sizeof(wrapped));            \
	} while (0)

void context_depth_wrap_own_calls(void)
{
	WRAP_OWN(cuMemCreate);
	WRAP_OWN(cuMemExportToShareableHandle);
	WRAP_OWN(cuMemImportFromShareableHandle);
}
