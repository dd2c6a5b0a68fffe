/* How callers get at the driver: dlsym, cuGetProcAddress and linked symbols, each answered with a wrapper.  */
#ifndef AFFINODE_RESOLVE_H
#define AFFINODE_RESOLVE_H

#include <stdbool.h>
#include <stdint.h>

/* dlsym of the library that comes after us: libc, or another preloaded library.  */
void *resolve_next(void *handle, const char *name);

/* A library that others are linked to. It may be loaded for one of them alone, where RTLD_NEXT does not look.  */
struct library {
	const char *soname;
	void *handle; /* NULL: not loaded yet */
};
extern struct library driver_library, nvml_library; /* the second is nvml_linked_symbols.c's */

/* NULL: it is not loaded. It stays then: what was found would lead nowhere once the library that needed it has gone.  */
void *library_handle(struct library *library);

/* The library's function that dlsym(handle, name) means, never one of ours: for RTLD_NEXT, and where the handle's scope has ours,
 * what follows this library. NULL: none.  */
void *resolve_real(struct library *library, void *handle, const char *name);

/* What to hand out for a driver entry point: a hook, a gated thunk, or the driver's own pointer.
 * `name` is an exact symbol name, or (`version` > 0) a base name asked of cuGetProcAddress.  */
void *wrap_entry_point(const char *name, int version, void *real);

/* The wrapper of a symbol that a program is linked to; NULL: there is no driver.  */
void *resolve_linked(const char *name);

/* no_driver.c: what to call in its stead then.  */
void *no_driver_for(const char *name);

/* call_thunks.c: a gated thunk for `real`, `settles`: for a copy or fill whose name does not say that it is asynchronous; NULL
 * when the pool is used up.  */
void *thunk_for(void *real, int class_, bool wide, bool settles);

/* hook_registry.c: a hook for this name with `real` behind it, NULL if the name has none.  */
void *hook_for(const char *name, int version, void *real);

/* Another thread of the parent may have been looking up an entry point.  */
void hooks_reset_in_child(void);
void thunks_reset_in_child(void);

#endif
