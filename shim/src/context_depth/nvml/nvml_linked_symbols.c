/* NVML's names for programs and libraries that are linked to it: the preloaded library comes first, so these are what they
 * call, however they were loaded, but for libraries loaded with RTLD_DEEPBIND. Each finds the real function at its first
 * call.  */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#include "context_depth/nvml/nvml_gate.h"
#include "driver/symbol_finder.h"

#define LIBRARY_NOT_FOUND 12  /* NVML_ERROR_LIBRARY_NOT_FOUND */
#define FUNCTION_NOT_FOUND 13 /* NVML_ERROR_FUNCTION_NOT_FOUND */

struct library nvml_library = {"libnvidia-ml.so.1", NULL};

static W call_linked(const char *name, void **cache, INT_PARAMETERS)
{
	void *real = __atomic_load_n(cache, __ATOMIC_ACQUIRE);

	if (!real) {
		real = resolve_real(&nvml_library, RTLD_NEXT, name);
		if (!real)
			return library_handle(&nvml_library) ? FUNCTION_NOT_FOUND : LIBRARY_NOT_FOUND;
		__atomic_store_n(cache, real, __ATOMIC_RELEASE);
	}
	return nvml_call(real, INT_ARGUMENTS);
}

#define ENTRY(name)                                                 \
	__attribute__((visibility("default"))) W name(INT_PARAMETERS); \
	W name(INT_PARAMETERS)                                      \
	{                                                           \
		static void *cache;                                 \
		return call_linked(#name, &cache, INT_ARGUMENTS);   \
	}
#include "context_depth/nvml_entry_points.h"
