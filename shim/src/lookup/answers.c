#define _GNU_SOURCE
#include "lookup/lookup.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

#include "base/log.h"
#include "context_depth/context_depth.h"
#include "driver/cuda_types.h"
#include "driver/entry_point.h"
#include "driver/real_driver.h"
#include "driver/symbol_finder.h"
#include "hooks/call_thunks.h"
#include "process/lifecycle.h"
#include "protocol.h"
#include "state/depth.h"
#include "state/shim_state.h"

/* Called by dlsym.S.  */
__attribute__((visibility("hidden"))) uintptr_t affinode_answer_dlsym(void *handle, const char *name, const void *caller);

/* Return whether the name is of the form cu[A-Z]…: cudaMalloc and cublasCreate are not the driver's.  */
static bool is_driver_name(const char *name)
{
	return name && name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

/* Answer a library that asks for what comes after itself. If it stands after the shim, it must not be given its own function.
 * One that hooks dlsym and exports nothing answers for what comes next, too.  */
static void *resolve_after(const void *caller, const char *name)
{
	void *real = resolve_real(&driver_library, RTLD_NEXT, name), *hooked = NULL, *handle;

	if (!real || is_drivers_own(real))
		hooked = resolve_by_hook(RTLD_NEXT, name);
	if (hooked && !is_in_this_library(hooked))
		real = hooked;
	if (!real || !is_same_object(real, caller))
		return real;
	handle = library_handle(&driver_library);
	return handle ? resolve_by_libc(handle, name) : NULL;
}

uintptr_t affinode_answer_dlsym(void *handle, const char *name, const void *caller)
{
	uintptr_t answer;
	void *real;

	if (nvml_answer(handle, name, &answer))
		return answer;
	if (!is_driver_name(name) || shim_is_disabled()) {
		resolve_prepare_next();
		return 0;
	}
	real = handle == RTLD_NEXT ? resolve_after(caller, name) : resolve_real(&driver_library, handle, name);
	if (!real)
		return entry_point(name) && resolve_is_scope(handle) ? 1 : 0;
	driver_note_handle(resolve_is_scope(handle) ? RTLD_NEXT : handle);
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
	if (!is_drivers_own(real))
		driver_note_company(name);
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
			    entry && (entry->traits & TRAIT_SETTLES), entry ? entry->name : NULL);
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
