/* The registry of hooks, and those that are about getting at the driver.  */
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "driver/real_driver.h"
#include "hooks/hook.h"
#include "base/log.h"
#include "driver/symbol_lookup.h"
#include "shim.h"

#define HOOK_ROW(function, name, version) extern struct hook hook_##function;
#include "driver/entry_points.h"

#define HOOK_ROW(function, name, version) {name, version, &hook_##function},
static const struct hook_name hook_names[] = {
#include "driver/entry_points.h"
};

static pthread_mutex_t hooks_lock = PTHREAD_MUTEX_INITIALIZER;

void *hook_instance(struct hook *hook, void *real)
{
	void *thunk = NULL;

	pthread_mutex_lock(&hooks_lock);
	for (int i = 0; i < HOOK_INSTANCES && !thunk; i++) {
		if (!hook->reals[i])
			__atomic_store_n(&hook->reals[i], real, __ATOMIC_RELEASE);
		if (hook->reals[i] == real)
			thunk = hook->thunks[i];
	}
	pthread_mutex_unlock(&hooks_lock);
	return thunk;
}

struct hook *hook_named(const struct hook_name *names, size_t count, const char *name, int version)
{
	for (size_t i = 0; i < count; i++) {
		const struct hook_name *known = &names[i];

		if ((known->version == 0) != (version == 0) || version < known->version)
			continue;
		if (strcmp(known->name, name) == 0)
			return known->hook;
	}
	return NULL;
}

void *hook_for(const char *name, int version, void *real)
{
	struct hook *hook = hook_named(hook_names, sizeof(hook_names) / sizeof(hook_names[0]), name, version);
	void *thunk = hook ? hook_instance(hook, real) : NULL;

	if (hook && !thunk)
		shim_give_up_parking("more copies of a driver entry point than there are hooks");
	return thunk;
}

void hooks_reset_in_child(void)
{
	pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

	memcpy(&hooks_lock, &fresh, sizeof(fresh));
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
