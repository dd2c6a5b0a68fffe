/* How callers get at the driver: dlsym, cuGetProcAddress and linked symbols, each answered with a wrapper.  */
#pragma once

/* What to hand out for a driver entry point: a hook, a gated thunk, or the driver's own pointer.
 * `name` is an exact symbol name, or (`version` > 0) a base name asked of cuGetProcAddress.  */
void *wrap_entry_point(const char *name, int version, void *real);

/* The wrapper of a symbol that a program is linked to; NULL: there is no driver.  */
void *resolve_linked(const char *name);

/* A hook for this name with `real` behind it, NULL if the name has none.  */
void *hook_for(const char *name, int version, void *real);
