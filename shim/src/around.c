/* Three things:
 * - Whoever takes much of a device's memory shares the GPU's lock meanwhile, so that a process that holds it finds the room
 *   that it has seen (gpu_lock.h).
 * - Whoever shares GPU memory with other processes or APIs is never parked at context depth.
 * - Calls that make, change or destroy contexts change what threads have current behind the shadows' back.  */
#include "around.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "blocks.h"
#include "checkpoint.h"
#include "clock.h"
#include "contexts.h"
#include "driver.h"
#include "gpu_lock.h"
#include "shadows.h"
#include "shapes.h"
#include "shim.h"

#define INT_POOL 48
#define WIDE_POOL 16
/* A context comes back in a fifth of a second, its memory in one; a process that was stopped with the lock in its hand
 * makes allocations ask for room, as a full GPU does.  */
#define SHARE_NS (10 * S_NS)

enum {
	TAKES = 1u << 0,         /* memory of the current device, as many bytes as the second argument says */
	TAKES_HANDLE = 1u << 1,  /* the same, of the device that the third argument describes */
	TAKES_CONTEXT = 1u << 2, /* memory of any device */
	SHARES = 1u << 3,
	CONTEXTS = 1u << 4,
};

struct rule {
	const char *name; /* whatever version suffix it has */
	unsigned what;
};

static const struct rule rules[] = {
	{"cuMemCreate", TAKES_HANDLE},
	{"cuMemAlloc", TAKES},
	{"cuMemAllocManaged", TAKES},
	{"cuMemAllocAsync", TAKES},
	{"cuMemAllocFromPoolAsync", TAKES},
	{"cuCtxCreate", TAKES_CONTEXT | CONTEXTS},
	{"cuDevicePrimaryCtxRetain", TAKES_CONTEXT},
	{"cuCtxDestroy", CONTEXTS},
	{"cuCtxAttach", CONTEXTS},
	{"cuCtxDetach", CONTEXTS},
	{"cuDevicePrimaryCtxReset", CONTEXTS},
	{"cuDevicePrimaryCtxRelease", CONTEXTS},
	{"cuGreenCtxCreate", TAKES_CONTEXT | CONTEXTS},
	{"cuGreenCtxDestroy", CONTEXTS},
	{"cuGLCtxCreate", SHARES | CONTEXTS},
	{"cuVDPAUCtxCreate", SHARES | CONTEXTS},
	{"cuIpcGetMemHandle", SHARES},
	{"cuIpcOpenMemHandle", SHARES},
	{"cuIpcGetEventHandle", SHARES},
	{"cuIpcOpenEventHandle", SHARES},
	{"cuMemExportToShareableHandle", SHARES},
	{"cuMemImportFromShareableHandle", SHARES},
	{"cuMemPoolExportToShareableHandle", SHARES},
	{"cuMemPoolImportFromShareableHandle", SHARES},
	{"cuMemGetHandleForAddressRange", SHARES},
	{"cuImportExternalMemory", SHARES},
	{"cuImportExternalSemaphore", SHARES},
	{"cuMulticastCreate", SHARES},
	{"cuGraphicsEGLRegisterImage", SHARES},
	{"cuGraphicsGLRegisterBuffer", SHARES},
	{"cuGraphicsGLRegisterImage", SHARES},
	{"cuGraphicsVDPAURegisterOutputSurface", SHARES},
	{"cuGraphicsVDPAURegisterVideoSurface", SHARES},
	{"cuGLRegisterBufferObject", SHARES},
	{"cuEGLStreamConsumerConnect", SHARES},
	{"cuEGLStreamProducerConnect", SHARES},
};

struct target {
	void *real;
	unsigned what;
};

static struct target int_targets[INT_POOL], wide_targets[WIDE_POOL];
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;

/* The devices whose locks were shared, as bits; false: one could not be had.  */
static bool share_all(uint64_t *shared)
{
	bool had = true;

	*shared = 0;
	for (int i = 0; i < device_count_known() && i < 64 && had; i++) {
		int result = gpu_share(device_at(i)->uuid, SHARE_NS);

		if (result == 0)
			*shared |= 1ull << i;
		had = result != -EBUSY;
	}
	return had;
}

static void unshare_all(uint64_t shared)
{
	for (int i = 0; i < 64; i++)
		if (shared & (1ull << i))
			gpu_unshare(device_at(i)->uuid);
}

/* The device whose memory is taken; NULL: unknown, or none of a device.  */
static struct device *device_meant(unsigned what, const CUmemAllocationProp *prop)
{
	struct context *context;

	if (what & TAKES_HANDLE)
		return prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? device_known(prop->location.id)
										  : NULL;
	context = context_current();
	return context ? context->device : NULL;
}

/* Of the device meant, or of all that may be.  */
static bool share_for(unsigned what, uint64_t bytes, const CUmemAllocationProp *prop, uint64_t *shared)
{
	struct device *device;
	int result;

	*shared = 0;
	if (!(what & (TAKES | TAKES_HANDLE | TAKES_CONTEXT)) || !shim_is_on() ||
	    (!(what & TAKES_CONTEXT) && bytes < BACKED_FROM_BYTES) || !gpu_locks_are_used())
		return true;
	if (what & TAKES_CONTEXT)
		return share_all(shared);
	device = device_meant(what, prop);
	result = device ? gpu_share(device->uuid, SHARE_NS) : -ENOENT;
	if (result == 0)
		*shared = 1ull << device_index(device);
	return result != -EBUSY;
}

static void note(unsigned what, bool done)
{
	if ((what & SHARES) && done)
		checkpoint_refuse("it shares GPU memory with other processes or devices");
	if (what & CONTEXTS)
		shadows_forget_contexts();
}

static W call_int(const struct target *target, INT_PARAMETERS)
{
	uint64_t shared;
	W result;

	if (!share_for(target->what, a1, (const CUmemAllocationProp *)a2, &shared)) {
		unshare_all(shared);
		return CUDA_ERROR_OUT_OF_MEMORY; /* which asks for room, and is tried again */
	}
	result = ((int_fn)target->real)(INT_ARGUMENTS);
	unshare_all(shared);
	note(target->what, (CUresult)result == CUDA_SUCCESS);
	return result;
}

static W call_wide(const struct target *target, WIDE_PARAMETERS)
{
	W result = ((wide_fn)target->real)(WIDE_ARGUMENTS);

	note(target->what, (CUresult)result == CUDA_SUCCESS);
	return result;
}

REPEAT_16(INT_THUNK, 0x0) REPEAT_16(INT_THUNK, 0x1) REPEAT_16(INT_THUNK, 0x2) REPEAT_16(WIDE_THUNK, 0x0)

#define INT_NAME(n) int_thunk_##n,
#define WIDE_NAME(n) wide_thunk_##n,
static const int_fn int_thunks[INT_POOL] = {REPEAT_16(INT_NAME, 0x0) REPEAT_16(INT_NAME, 0x1) REPEAT_16(INT_NAME, 0x2)};
static const wide_fn wide_thunks[WIDE_POOL] = {REPEAT_16(WIDE_NAME, 0x0)};

static unsigned rule_for(const char *name)
{
	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
		size_t n = strlen(rules[i].name);

		/* "_v2", "_ptsz" or nothing: no other name begins with one of these and an underscore */
		if (strncmp(name, rules[i].name, n) == 0 && (name[n] == 0 || name[n] == '_'))
			return rules[i].what;
	}
	return 0;
}

static int bind_target(struct target *targets, int count, void *real, unsigned what)
{
	int bound = -1;

	pthread_mutex_lock(&pool_lock);
	for (int i = 0; i < count && bound < 0; i++) {
		if (!targets[i].real) {
			targets[i].what = what;
			__atomic_store_n(&targets[i].real, real, __ATOMIC_RELEASE);
		}
		if (targets[i].real == real)
			bound = i;
	}
	pthread_mutex_unlock(&pool_lock);
	return bound;
}

void *around_for(const char *name, bool wide, void *real)
{
	unsigned what = rule_for(name);
	void *thunk = real;
	int i;

	if (!checkpoint_is_asked())
		what &= ~(unsigned)(SHARES | CONTEXTS);
	if (!what)
		return real;
	i = wide ? bind_target(wide_targets, WIDE_POOL, real, what) : bind_target(int_targets, INT_POOL, real, what);
	if (i < 0)
		checkpoint_refuse("more driver entry points than there are wrappers");
	else if (wide)
		memcpy(&thunk, &wide_thunks[i], sizeof(thunk));
	else
		memcpy(&thunk, &int_thunks[i], sizeof(thunk));
	return thunk;
}

/* A driver that lacks an entry point has nothing to be wrapped.  */
#define WRAP_OWN(name)                                                      \
	do {                                                                \
		void *real, *wrapped;                                       \
		memcpy(&real, &driver.name, sizeof(real));                  \
		wrapped = real ? around_for(#name, false, real) : NULL;     \
		memcpy(&driver.name, &wrapped, sizeof(wrapped));            \
	} while (0)

void around_own_calls(void)
{
	WRAP_OWN(cuMemCreate);
	WRAP_OWN(cuMemExportToShareableHandle);
	WRAP_OWN(cuMemImportFromShareableHandle);
}

void around_reset_in_child(void)
{
	pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

	memcpy(&pool_lock, &fresh, sizeof(fresh));
}
