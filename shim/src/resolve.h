/* How callers get at the driver: dlsym, cuGetProcAddress and linked symbols, each answered with a wrapper.  */
#ifndef AFFINODE_RESOLVE_H
#define AFFINODE_RESOLVE_H

#include <stdbool.h>
#include <stdint.h>

/* dlsym of whoever comes after us: libc, or another preloaded library.  */
void *resolve_next(void *handle, const char *name);

/* What to hand out for a driver entry point: a hook, a gated thunk, or the driver's own pointer.
 * `name` is an exact symbol name, or (`version` > 0) a base name asked of cuGetProcAddress.  */
void *wrap_entry_point(const char *name, int version, void *real);

/* The wrapper of a symbol that a program is linked to; not `found`: a function that returns CUDA_ERROR_NO_DEVICE.  */
void *resolve_linked(const char *name, bool *found);

/* thunks.c: a gated thunk for `real`, `settles`: for a copy or fill whose name does not say that it is asynchronous; NULL
 * when the pool is used up.  */
void *thunk_for(void *real, int class_, bool wide, bool settles);

/* hooks.c: a hook for this name with `real` behind it, NULL if the name has none.  */
void *hook_for(const char *name, int version, void *real);

/* Another thread of the parent may have been looking up an entry point.  */
void hooks_reset_in_child(void);
void thunks_reset_in_child(void);

#endif
