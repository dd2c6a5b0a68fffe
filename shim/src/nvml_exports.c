/* NVML's names for programs and libraries that are linked to it: the preloaded library comes first, so these are what they
 * call, however they were loaded, but for libraries loaded with RTLD_DEEPBIND. Each finds the real function at its first
 * call.  */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "nvml_gate.h"
#include "resolve.h"

#define LIBRARY_NOT_FOUND 12  /* NVML_ERROR_LIBRARY_NOT_FOUND */
#define FUNCTION_NOT_FOUND 13 /* NVML_ERROR_FUNCTION_NOT_FOUND */

/* NULL: it is not there. A library that is linked to NVML has loaded it, perhaps for itself alone, where RTLD_NEXT does not
 * look; and it stays, or what was found would lead nowhere once that library has gone.  */
static void *nvml_library(void)
{
	static void *library;
	void *found = __atomic_load_n(&library, __ATOMIC_ACQUIRE);

	if (!found) {
		found = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
		__atomic_store_n(&library, found, __ATOMIC_RELEASE);
	}
	return found;
}

/* What comes after us under that name, so that others who stand before NVML are not passed by.  */
void *nvml_behind(const char *name)
{
	void *library = nvml_library(), *real = resolve_next(RTLD_NEXT, name);

	return real || !library ? real : resolve_next(library, name);
}

static W call_linked(const char *name, void **cache, INT_PARAMETERS)
{
	void *real = __atomic_load_n(cache, __ATOMIC_ACQUIRE);

	if (!real) {
		real = nvml_behind(name);
		if (!real)
			return nvml_library() ? FUNCTION_NOT_FOUND : LIBRARY_NOT_FOUND;
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
#include "nvml_entry_points.h"
