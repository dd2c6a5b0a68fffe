/* The driver's names for programs that are linked to libcuda: the preloaded library comes first, so these are what
 * they call. Each finds the real symbol behind us at its first call.  */
#include <stddef.h>
#include <string.h>

#include "driver/call_signatures.h"
#include "driver/cuda_types.h"
#include "driver/symbol_finder.h"
#include "lookup/lookup.h"

static const struct {
	int number;
	const char *name, *words;
} errors[] = {
	{CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
#define ERROR(name, number, words) {number, "CUDA_ERROR_" #name, words},
#include "driver/cuda_errors.h"
};

static CUresult error_text(CUresult error, const char **text, size_t member)
{
	if (!text)
		return CUDA_ERROR_INVALID_VALUE;
	*text = NULL;
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]) && !*text; i++)
		if (errors[i].number == (int)error)
			memcpy(text, (const char *)&errors[i] + member, sizeof(*text));
	return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult error_name(CUresult error, const char **text)
{
	return error_text(error, text, offsetof(__typeof__(errors[0]), name));
}

static CUresult error_string(CUresult error, const char **text)
{
	return error_text(error, text, offsetof(__typeof__(errors[0]), words));
}

static CUresult no_device(void)
{
	return CUDA_ERROR_NO_DEVICE;
}

static CUresult not_found(void)
{
	return CUDA_ERROR_NOT_FOUND;
}

/* There is no driver: there is no device, and errors have names, since a program prints the name of that one. Or the driver does not have
 * the function.  */
static void *no_driver_for(const char *name)
{
	if (library_handle(&driver_library))
		return (void *)not_found;
	if (strcmp(name, "cuGetErrorName") == 0)
		return (void *)error_name;
	return strcmp(name, "cuGetErrorString") == 0 ? (void *)error_string : (void *)no_device;
}

/* Return the driver's function, which is remembered once it was found. While there is no libcuda it is looked up at each call,
 * since it may be loaded later.  */
static void *linked_target(const char *name, void **cache)
{
	void *target = __atomic_load_n(cache, __ATOMIC_ACQUIRE);

	if (!target) {
		target = resolve_linked(name);
		if (!target)
			return no_driver_for(name);
		__atomic_store_n(cache, target, __ATOMIC_RELEASE);
	}
	return target;
}

#define EXPORT __attribute__((visibility("default")))
#define EXPORT_INT(name)                                                                                            \
	EXPORT W name(INT_PARAMETERS);                                                                              \
	W name(INT_PARAMETERS)                                                                                      \
	{                                                                                                           \
		static void *cache;                                                                                 \
		return ((int_fn)linked_target(#name, &cache))(INT_ARGUMENTS);                                       \
	}
#define EXPORT_WIDE(name)                                                                                           \
	EXPORT W name(WIDE_PARAMETERS);                                                                             \
	W name(WIDE_PARAMETERS)                                                                                     \
	{                                                                                                           \
		static void *cache;                                                                                 \
		return ((wide_fn)linked_target(#name, &cache))(WIDE_ARGUMENTS);                                     \
	}
#define ENTRY(name, CLASS, SHAPE, words, traits) EXPORT_##SHAPE(name)
#include "driver/entry_points.h"
