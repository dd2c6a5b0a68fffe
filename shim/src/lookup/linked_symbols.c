/* The driver's names for programs that are linked to libcuda: the preloaded library comes first, so these are what
 * they call. Each finds the real symbol behind us at its first call.  */
#include "driver/call_signatures.h"
#include "lookup/lookup.h"

/* Kept once found; looked up again while there is no libcuda, since it may be loaded later.  */
static void *linked_target(const char *name, void **cache)
{
	void *target = __atomic_load_n(cache, __ATOMIC_ACQUIRE);

	if (!target) {
		target = resolve_linked(name);
		if (!target)
			return no_driver_for(name);
		__atomic_store_n(cache, target, __ATOMIC_RELEASE);
	}
	return target;
}

#define EXPORT __attribute__((visibility("default")))
#define EXPORT_INT(name)                                                                                            \
	EXPORT W name(INT_PARAMETERS);                                                                              \
	W name(INT_PARAMETERS)                                                                                      \
	{                                                                                                           \
		static void *cache;                                                                                 \
		return ((int_fn)linked_target(#name, &cache))(INT_ARGUMENTS);                                       \
	}
#define EXPORT_WIDE(name)                                                                                           \
	EXPORT W name(WIDE_PARAMETERS);                                                                             \
	W name(WIDE_PARAMETERS)                                                                                     \
	{                                                                                                           \
		static void *cache;                                                                                 \
		return ((wide_fn)linked_target(#name, &cache))(WIDE_ARGUMENTS);                                     \
	}
#define ENTRY(name, CLASS, SHAPE, words, traits) EXPORT_##SHAPE(name)
#include "driver/entry_points.h"
