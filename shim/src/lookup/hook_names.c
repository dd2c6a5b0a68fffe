/* Which hook stands before which name (shim/tools/entry_points.rules), and the hooks that are about getting at the driver.  */
#include "lookup/lookup.h"

#include <stdint.h>

#include "driver/hook.h"
#include "driver/real_driver.h"
#include "process/lifecycle.h"
#include "state/shim_state.h"

#define HOOK_ROW(function, name, version) extern struct hook hook_##function;
#include "driver/entry_points.h"

#define HOOK_ROW(function, name, version) {name, version, &hook_##function},
static const struct hook_name hook_names[] = {
#include "driver/entry_points.h"
};

void *hook_for(const char *name, int version, void *real)
{
	struct hook *hook = hook_named(hook_names, sizeof(hook_names) / sizeof(hook_names[0]), name, version);
	void *thunk = hook ? hook_instance(hook, real) : NULL;

	if (hook && !thunk)
		shim_give_up_parking("more copies of a driver entry point than there are hooks");
	return thunk;
}

static CUresult on_cuInit(void *real, unsigned int flags)
{
	CUresult result = ((CUresult(*)(unsigned int))real)(flags);

	if (result == CUDA_SUCCESS)
		shim_start();
	return result;
}
HOOK(cuInit, (unsigned int flags), flags)

/* Keeps the driver's result, its NULLs and its symbolStatus; only a pointer it found is replaced.  */
static CUresult on_cuGetProcAddress_v2(void *real, const char *symbol, void **pfn, int version, uint64_t flags,
				       int *symbol_status)
{
	CUresult result;

	driver_note_get_proc_address(real);
	result = ((CUresult(*)(const char *, void **, int, uint64_t, int *))real)(symbol, pfn, version, flags,
										  symbol_status);
	if (result == CUDA_SUCCESS && symbol && pfn && *pfn)
		*pfn = wrap_entry_point(symbol, version > 0 ? version : 1, *pfn);
	return result;
}
HOOK(cuGetProcAddress_v2, (const char *symbol, void **pfn, int version, uint64_t flags, int *symbol_status), symbol,
     pfn, version, flags, symbol_status)

static CUresult on_cuGetProcAddress(void *real, const char *symbol, void **pfn, int version, uint64_t flags)
{
	CUresult result = ((CUresult(*)(const char *, void **, int, uint64_t))real)(symbol, pfn, version, flags);

	if (result == CUDA_SUCCESS && symbol && pfn && *pfn)
		*pfn = wrap_entry_point(symbol, version > 0 ? version : 1, *pfn);
	return result;
}
HOOK(cuGetProcAddress, (const char *symbol, void **pfn, int version, uint64_t flags), symbol, pfn, version, flags)
