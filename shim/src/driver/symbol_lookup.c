#define _GNU_SOURCE
#include "driver/symbol_lookup.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

#include "context_depth/allocation_guard.h"
#include "context_depth/bookkeeping_gate.h"
#include "context_depth/checkpoint.h"
#include "driver/cuda_types.h"
#include "driver/entry_point.h"
#include "driver/real_driver.h"
#include "base/log.h"
#include "context_depth/nvml_gate.h"
#include "protocol.h"
#include "shim.h"

typedef void *(*dlsym_fn)(void *, const char *);

/* Read by dlsym.S after affinode_answer_dlsym has set it.  */
__attribute__((visibility("hidden"))) dlsym_fn affinode_next_dlsym;
__attribute__((visibility("hidden"))) uintptr_t affinode_answer_dlsym(void *handle, const char *name,
								       const void *caller);

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

/* Exactly cu[A-Z]…: cudaMalloc, cublasCreate and friends are not the driver's.  */
static bool is_driver_name(const char *name)
{
	return name && name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

static bool is_in_this_library(const void *address)
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

static bool is_scope(const void *handle)
{
	return handle == RTLD_DEFAULT || handle == RTLD_NEXT;
}

/* The next in line first, so that others who stand before the library are not passed by.  */
void *resolve_real(struct library *library, void *handle, const char *name)
{
	void *real = handle == RTLD_NEXT ? NULL : resolve_next(handle, name), *loaded;

	if (real ? !is_in_this_library(real) : !is_scope(handle))
		return real;
	loaded = library_handle(library);
	real = resolve_next(RTLD_NEXT, name);
	return real || !loaded ? real : resolve_next(loaded, name);
}

/* A question whether NVML is there must not be answered with what we export in its stead.  */
static uintptr_t answer_nvml(void *handle, const char *name)
{
	void *found = resolve_next(handle, name), *real = resolve_real(&nvml_library, handle, name);

	if (real && checkpoint_is_asked() && !shim_is_disabled())
		return (uintptr_t)nvml_wrap(real);
	return !found || !is_in_this_library(found) ? 0 : real ? (uintptr_t)real : 1;
}

static bool is_same_object(const void *one, const void *other)
{
	Dl_info first, second;

	return dladdr(one, &first) && dladdr(other, &second) && first.dli_fbase == second.dli_fbase;
}

/* A library that stands behind us and asks for what comes after itself must not be given its own function.  */
static void *resolve_after(const void *caller, const char *name)
{
	void *real = resolve_real(&driver_library, RTLD_NEXT, name), *handle;

	if (!real || !is_same_object(real, caller))
		return real;
	handle = library_handle(&driver_library);
	return handle ? resolve_next(handle, name) : NULL;
}

uintptr_t affinode_answer_dlsym(void *handle, const char *name, const void *caller)
{
	void *real;

	if (nvml_is_name(name))
		return answer_nvml(handle, name);
	if (!is_driver_name(name) || shim_is_disabled()) {
		if (!__atomic_load_n(&affinode_next_dlsym, __ATOMIC_ACQUIRE))
			resolve_next(RTLD_DEFAULT, "dlsym");
		return 0;
	}
	real = handle == RTLD_NEXT ? resolve_after(caller, name) : resolve_real(&driver_library, handle, name);
	if (!real)
		return entry_point(name) && is_scope(handle) ? 1 : 0;
	driver_note_handle(is_scope(handle) ? RTLD_NEXT : handle);
	if (strcmp(name, "cuGetProcAddress_v2") == 0)
		driver_note_get_proc_address(real);
	return (uintptr_t)wrap_entry_point(name, 0, real);
}

static bool passes_the_gate(uint8_t class_)
{
	return class_ == AFFINODE_CLASS_HOST || class_ == AFFINODE_CLASS_QUERY || class_ == AFFINODE_CLASS_FREE;
}

void *wrap_entry_point(const char *name, int version, void *real)
{
	const struct entry_point *entry = entry_point(name);
	bool wide = !entry || entry->wide;
	void *wrapper;

	if (shim_is_disabled())
		return real;
	shim_prepare();
	real = around_for(name, wide, real);
	if (entry && checkpoint_is_asked())
		real = books_below(entry, version, real);
	wrapper = hook_for(name, version, real);
	if (wrapper)
		return entry && checkpoint_is_asked() ? books_above(entry, wrapper) : wrapper;
	if (entry && passes_the_gate(entry->class_))
		return real;
	/* A name that came after this table may take anything and do anything.  */
	wrapper = thunk_for(real, entry ? entry->class_ : AFFINODE_CLASS_LAUNCH, wide,
			    entry && (entry->traits & TRAIT_SETTLES));
	if (!wrapper) {
		shim_give_up_parking("more driver entry points than there are wrappers");
		return real;
	}
	return wrapper;
}

void *resolve_linked(const char *name)
{
	void *real = resolve_real(&driver_library, RTLD_NEXT, name);

	if (!real)
		return NULL;
	driver_note_handle(RTLD_NEXT);
	return wrap_entry_point(name, 0, real);
}
