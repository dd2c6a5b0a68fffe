#define _GNU_SOURCE
#include "driver/symbol_finder.h"

#include <dlfcn.h>
#include <string.h>

typedef void *(*dlsym_fn)(void *, const char *);

/* Called by dlsym.S for names that are not ours, after it has been set by resolve_next.  */
__attribute__((visibility("hidden"))) dlsym_fn affinode_next_dlsym;

/* We do not export dlvsym, so this finds the next dlsym without coming back to ours. The versions are those under
 * which libc has had it: x86-64 since 2.2.5 and, in libc proper, 2.34; aarch64 since 2.17.  */
static dlsym_fn find_next_dlsym(void)
{
	static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
	void *found = NULL;
	dlsym_fn fn;

	for (unsigned i = 0; i < sizeof(versions) / sizeof(versions[0]) && !found; i++)
		found = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
	memcpy(&fn, &found, sizeof(fn));
	return fn;
}

static void *no_symbol(void *handle, const char *name)
{
	(void)handle, (void)name;
	return NULL;
}

void *resolve_next(void *handle, const char *name)
{
	dlsym_fn next = __atomic_load_n(&affinode_next_dlsym, __ATOMIC_ACQUIRE);

	if (!next) {
		next = find_next_dlsym();
		if (!next)
			next = no_symbol;
		__atomic_store_n(&affinode_next_dlsym, next, __ATOMIC_RELEASE);
	}
	return next(handle, name);
}

void resolve_prepare_next(void)
{
	if (!__atomic_load_n(&affinode_next_dlsym, __ATOMIC_ACQUIRE))
		resolve_next(RTLD_DEFAULT, "dlsym");
}

bool is_in_this_library(const void *address)
{
	extern const char __ehdr_start[] __attribute__((visibility("hidden")));
	extern const char _end[] __attribute__((visibility("hidden")));

	return (const char *)address >= __ehdr_start && (const char *)address < _end;
}

struct library driver_library = {"libcuda.so.1", NULL};

void *library_handle(struct library *library)
{
	void *handle = __atomic_load_n(&library->handle, __ATOMIC_ACQUIRE);

	if (!handle) {
		handle = dlopen(library->soname, RTLD_LAZY | RTLD_NOLOAD);
		__atomic_store_n(&library->handle, handle, __ATOMIC_RELEASE);
	}
	return handle;
}

bool resolve_is_scope(const void *handle)
{
	return handle == RTLD_DEFAULT || handle == RTLD_NEXT;
}

/* The next in line first, so that others before the library are not passed by.  */
void *resolve_real(struct library *library, void *handle, const char *name)
{
	void *real = handle == RTLD_NEXT ? NULL : resolve_next(handle, name), *loaded;

	if (real ? !is_in_this_library(real) : !resolve_is_scope(handle))
		return real;
	loaded = library_handle(library);
	real = resolve_next(RTLD_NEXT, name);
	return real || !loaded ? real : resolve_next(loaded, name);
}
