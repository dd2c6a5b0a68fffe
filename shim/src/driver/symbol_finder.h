/* Finding symbols past this library.  */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* By the dlsym that comes after ours: libc's, or another preloaded library's. For RTLD_NEXT by libc's, relative to this library.  */
void *resolve_next(void *handle, const char *name);

/* By libc's, past all hooks; and by another library's hook, NULL where there is none.  */
void *resolve_by_libc(void *handle, const char *name);
void *resolve_by_hook(void *handle, const char *name);

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
bool is_same_object(const void *one, const void *other);

/* Whether the driver's functions that programs look up go through us. Not where another library's dlsym comes first and asks libc.  */
bool lookups_come_by(void);

/* Whether an entry point is the driver's own, and not another library's in front of it.  */
bool is_drivers_own(const void *entry_point);

/* The function of that name in the object that `address` is in, by its symbol table (driver/symbol_table.c); NULL: none.  */
void *symbol_beside(const void *address, const char *name);
