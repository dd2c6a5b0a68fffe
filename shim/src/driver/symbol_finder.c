#define _GNU_SOURCE
#include "driver/symbol_finder.h"

#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <string.h>

typedef void *(*dlsym_fn)(void *, const char *);

/* musl has neither.  */
#pragma weak dlvsym
#pragma weak gnu_get_libc_version

/* Called by dlsym.S for names that are not ours, after it has been set by find_dlsyms.  */
__attribute__((visibility("hidden"))) dlsym_fn affinode_next_dlsym;

/* The dlsym of libc itself.  */
static dlsym_fn libc_dlsym;

/* The versions under which libc has dlsym, 2.34 only if it is that new: what is not found costs libc a malloc for the words of
 * dlerror, and an allocator that is being initialised, and that asks dlsym itself, would come back here.  */
static const char *const versions[] = {
#ifdef __aarch64__
	"GLIBC_2.17",
#else
	"GLIBC_2.2.5",
#endif
	"GLIBC_2.34",
};

/* Return how many of these versions this libc has. No function is called that a sanitizer hooks, since it may ask while it is
 * being initialised: "2.34" has four characters, as has each version from 2.10 to 2.99.  */
static unsigned known_versions(void)
{
	const char *version = gnu_get_libc_version ? gnu_get_libc_version() : "2.17";

	return version[2] > '3' || (version[2] == '3' && version[3] >= '4') ? 2 : 1;
}

bool is_same_object(const void *one, const void *other)
{
	Dl_info first, second;

	return dladdr(one, &first) && dladdr(other, &second) && first.dli_fbase == second.dli_fbase;
}

static dlsym_fn as_dlsym(void *found)
{
	dlsym_fn fn;

	memcpy(&fn, &found, sizeof(fn));
	return fn;
}

static bool is_libcs(dlsym_fn fn)
{
	return is_same_object((void *)fn, (void *)dladdr);
}

/* Return libc's dlsym, or the next one of another library that has a version; NULL if there is none. The shim exports no
 * dlvsym, so the search does not come back to its own.  */
static dlsym_fn versioned_dlsym(bool of_libc)
{
	dlsym_fn fn;

	for (unsigned i = 0; dlvsym && i < known_versions(); i++) {
		fn = as_dlsym(dlvsym(RTLD_NEXT, "dlsym", versions[i]));
		if (fn && is_libcs(fn) == of_libc)
			return fn;
	}
	return NULL;
}

static void *no_symbol(void *handle, const char *name)
{
	(void)handle, (void)name;
	return NULL;
}

static void use_dlsyms(dlsym_fn libc, dlsym_fn next)
{
	__atomic_store_n(&libc_dlsym, libc ? libc : no_symbol, __ATOMIC_RELEASE);
	__atomic_store_n(&affinode_next_dlsym, next ? next : no_symbol, __ATOMIC_RELEASE);
}

/* A library after ours may have a dlsym of its own, without a version or with one: tools that limit a process's GPU memory
 * do. What a program asks for is asked of that. A lookup from inside, by an allocator that libc asks for memory here, is answered
 * by libc.  */
static void find_dlsyms(void)
{
	static __thread bool is_inside __attribute__((tls_model("initial-exec")));
	static __thread dlsym_fn libc __attribute__((tls_model("initial-exec")));
	dlsym_fn next = NULL;

	if (is_inside) {
		use_dlsyms(libc, libc);
		return;
	}
	is_inside = true;
	libc = versioned_dlsym(true);
	if (!libc)
		libc = as_dlsym(symbol_beside((void *)dladdr, "dlsym"));
	if (libc)
		next = as_dlsym(libc(RTLD_NEXT, "dlsym"));
	if (!next || is_libcs(next))
		next = versioned_dlsym(false);
	use_dlsyms(libc ? libc : next, next ? next : libc);
	is_inside = false;
}

void resolve_prepare_next(void)
{
	if (!__atomic_load_n(&affinode_next_dlsym, __ATOMIC_ACQUIRE))
		find_dlsyms();
}

void *resolve_next(void *handle, const char *name)
{
	resolve_prepare_next();
	/* What comes after us, not after the library whose dlsym it is.  */
	return (handle == RTLD_NEXT ? libc_dlsym : affinode_next_dlsym)(handle, name);
}

void *resolve_by_libc(void *handle, const char *name)
{
	resolve_prepare_next();
	return libc_dlsym(handle, name);
}

void *resolve_by_hook(void *handle, const char *name)
{
	resolve_prepare_next();
	return affinode_next_dlsym == libc_dlsym ? NULL : affinode_next_dlsym(handle, name);
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

/* Look first at what comes next after the shim, so that libraries which stand before the driver are not passed by.  */
void *resolve_real(struct library *library, void *handle, const char *name)
{
	void *real = handle == RTLD_NEXT ? NULL : resolve_next(handle, name), *loaded;

	if (real ? !is_in_this_library(real) : !resolve_is_scope(handle))
		return real;
	loaded = library_handle(library);
	real = resolve_next(RTLD_NEXT, name);
	return real || !loaded ? real : resolve_next(loaded, name);
}

bool lookups_come_by(void)
{
	void *handle = library_handle(&driver_library);
	dlsym_fn first;

	resolve_prepare_next();
	first = as_dlsym(libc_dlsym(RTLD_DEFAULT, "dlsym"));
	if (!first || !handle || is_libcs(first) || is_in_this_library((void *)first))
		return true;
	return is_in_this_library(first(handle, "cuStreamQuery"));
}

bool is_drivers_own(const void *entry_point)
{
	static const char driver[] = "libcuda.so";
	const char *slash;
	Dl_info info;

	if (!dladdr(entry_point, &info) || !info.dli_fname)
		return false;
	slash = strrchr(info.dli_fname, '/');
	return strncmp(slash ? slash + 1 : info.dli_fname, driver, sizeof(driver) - 1) == 0;
}
