/* Finding symbols past this library.  */
#ifndef AFFINODE_SYMBOL_FINDER_H
#define AFFINODE_SYMBOL_FINDER_H

#include <stdbool.h>
#include <stdint.h>

/* dlsym of the library that comes after us: libc, or another preloaded library.  */
void *resolve_next(void *handle, const char *name);

/* dlsym.S may go there from now on.  */
void resolve_prepare_next(void);

/* A library that others are linked to. It may be loaded for one of them alone, where RTLD_NEXT does not look.  */
struct library {
	const char *soname;
	void *handle; /* NULL: not loaded yet */
};
extern struct library driver_library;

/* NULL: it is not loaded. It stays then: what was found would lead nowhere once the library that needed it has gone.  */
void *library_handle(struct library *library);

/* The library's function that dlsym(handle, name) means, never one of ours: for RTLD_NEXT, and where the handle's scope has ours,
 * what follows this library. NULL: none.  */
void *resolve_real(struct library *library, void *handle, const char *name);

/* RTLD_DEFAULT or RTLD_NEXT.  */
bool resolve_is_scope(const void *handle);
bool is_in_this_library(const void *address);

#endif
