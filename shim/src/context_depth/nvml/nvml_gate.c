#define _GNU_SOURCE
#include "context_depth/nvml/nvml_gate.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/monotonic_futex.h"
#include "context_depth/bookkeeping_gate.h"
#include "context_depth/context_depth.h"
#include "driver/symbol_finder.h"
#include "driver/thunk_pool.h"
#include "state/depth.h"
#include "state/shim_state.h"

#define LIBRARY_NOT_FOUND 12  /* NVML_ERROR_LIBRARY_NOT_FOUND */
#define FUNCTION_NOT_FOUND 13 /* NVML_ERROR_FUNCTION_NOT_FOUND */
#define REFUSED 999           /* NVML_ERROR_UNKNOWN */
/* A process that asks every few seconds would be brought back each time: longer than monitors pause.  */
#define LATELY_NS (10 * S_NS)

static struct library nvml_library = {"libnvidia-ml.so.1", NULL};
static _Atomic uint64_t asked_ns;
static _Atomic bool comes_by; /* some calls do */

/* Once, rather than as a part of each wrapper, which takes the compiler seconds.  */
static __attribute__((noinline)) W call_gated(void *real, INT_PARAMETERS)
{
	struct books_pass pass;
	W result;

	while (!books_enter(&pass))
		if (books_wait_or_give_up() != CUDA_SUCCESS)
			return REFUSED;
	result = ((int_fn)real)(INT_ARGUMENTS);
	atomic_store(&asked_ns, clock_ns());
	books_leave(&pass);
	return result;
}

static W call_int(const struct thunk_target *target, INT_PARAMETERS)
{
	return call_gated(target->real, INT_ARGUMENTS);
}

INT_POOL(TIMES_512) /* NVML of CUDA 13 has about 400 */

/* Return whether it is a function of NVML's that may wait. nvmlErrorString asks no GPU, and returns text.  */
static bool nvml_is_name(const char *name)
{
	return name && strncmp(name, "nvml", 4) == 0 && name[4] >= 'A' && name[4] <= 'Z' &&
	       strcmp(name, "nvmlErrorString") != 0;
}

/* Return what to hand out for a function: a wrapper, or `real` if no wrapper is left. In that case the process is never parked
 * at context depth.  */
static void *nvml_wrap(void *real)
{
	void *thunk = thunk_bind(&int_pool, real, 0, NULL);

	atomic_store(&comes_by, true);
	if (!thunk)
		checkpoint_refuse(REASON_NVML_WRAPPERS_USED_UP);
	return thunk ? thunk : real;
}

/* A program that asks whether NVML is there must not be answered with what the shim exports under its names.  */
bool nvml_answer(void *handle, const char *name, uintptr_t *answer)
{
	void *found, *real;

	if (!nvml_is_name(name))
		return false;
	found = resolve_next(handle, name);
	real = resolve_real(&nvml_library, handle, name);
	if (real && checkpoint_is_asked() && !shim_is_disabled())
		*answer = (uintptr_t)nvml_wrap(real);
	else
		*answer = !found || !is_in_this_library(found) ? 0 : real ? (uintptr_t)real : 1;
	return true;
}

/* Look into the list of mappings, since the loader's lock may be held for as long as an import takes.  */
static bool is_loaded(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];
	bool found = !maps; /* it cannot be told */

	while (maps && !found && fgets(line, sizeof(line), maps))
		found = strstr(line, "libnvidia-ml.so") != NULL;
	if (maps)
		fclose(maps);
	return found;
}

enum reason nvml_objection(bool ends)
{
	uint64_t asked = atomic_load(&asked_ns);

	if (!ends && asked && clock_ns() - asked < LATELY_NS)
		return REASON_NVML_WATCHES;
	if (!atomic_load(&comes_by) && is_loaded())
		return REASON_NVML_UNSEEN;
	return NO_REASON;
}

static W call_unless_off(void *real, INT_PARAMETERS)
{
	if (!checkpoint_is_asked() || shim_is_disabled())
		return ((int_fn)real)(INT_ARGUMENTS);
	atomic_store(&comes_by, true);
	return call_gated(real, INT_ARGUMENTS);
}

static __attribute__((noinline)) W call_linked(const char *name, void **cache, INT_PARAMETERS)
{
	void *real = __atomic_load_n(cache, __ATOMIC_ACQUIRE);

	if (!real) {
		real = resolve_real(&nvml_library, RTLD_NEXT, name);
		if (!real)
			return library_handle(&nvml_library) ? FUNCTION_NOT_FOUND : LIBRARY_NOT_FOUND;
		__atomic_store_n(cache, real, __ATOMIC_RELEASE);
	}
	return call_unless_off(real, INT_ARGUMENTS);
}

/* NVML's names for programs and libraries that are linked to it. The preloaded library comes first, so these are what they call,
 * however they were loaded, but for libraries loaded with RTLD_DEEPBIND. Each finds the real function at its first call.  */
#define ENTRY(name)                                                 \
	__attribute__((visibility("default"))) W name(INT_PARAMETERS); \
	W name(INT_PARAMETERS)                                      \
	{                                                           \
		static void *cache;                                 \
		return call_linked(#name, &cache, INT_ARGUMENTS);   \
	}
#include "context_depth/nvml_entry_points.h"
