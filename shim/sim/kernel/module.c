/* cuModule* and cuFunc*: PTX text is searched for `.entry NAME`; names that are built in become functions.  */
#include "kernel/module.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "driver/api.h"
#include "stream/capture.h"

#define NAME_SIZE 128

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUmodule all;

static CUresult add_function(const char *name, CUfunction **end)
{
	const struct kernel *kernel = kernel_named(name);
	CUfunction function;

	if (!kernel)
		return CUDA_SUCCESS; /* not an error until it is asked for */
	function = object_new(OBJECT_FUNCTION, sizeof(*function));
	if (!function)
		return CUDA_ERROR_OUT_OF_MEMORY;
	function->kernel = kernel;
	**end = function;
	*end = &function->next;
	return CUDA_SUCCESS;
}

static CUresult read_entries(CUmodule module, const char *text)
{
	CUfunction *end = &module->functions;
	CUresult result = CUDA_SUCCESS;

	while (result == CUDA_SUCCESS && (text = strstr(text, ".entry"))) {
		char name[NAME_SIZE];

		text += strlen(".entry");
		if (sscanf(text, " %127[A-Za-z0-9_$]", name) == 1)
			result = add_function(name, &end);
	}
	return result;
}

static void free_module(CUmodule module)
{
	while (module->functions) {
		CUfunction function = module->functions;

		module->functions = function->next;
		object_free(OBJECT_FUNCTION, function);
	}
	object_free(OBJECT_MODULE, module);
}

/* cubins and fat binaries begin with magic numbers; there is nothing here that could run them.  */
static CUresult check_image(const char *image)
{
	static const unsigned char elf[] = {0x7f, 'E', 'L', 'F'}, fat[] = {0x50, 0xed, 0x55, 0xba},
				   fat_wrapper[] = {0xb1, 0x43, 0x62, 0x46};

	if (!memcmp(image, elf, 4) || !memcmp(image, fat, 4) || !memcmp(image, fat_wrapper, 4))
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	return strstr(image, ".version") ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

static CUresult load(CUmodule *made, CUcontext context, const void *image)
{
	CUmodule module;
	CUresult result;

	if (!made || !image)
		return CUDA_ERROR_INVALID_VALUE;
	result = check_image(image);
	if (result != CUDA_SUCCESS)
		return result;
	module = object_new(OBJECT_MODULE, sizeof(*module));
	if (!module)
		return CUDA_ERROR_OUT_OF_MEMORY;
	module->context = context_home(context);
	module->context_id = module->context->id;
	result = read_entries(module, image);
	if (result != CUDA_SUCCESS) {
		free_module(module);
		return result;
	}
	pthread_mutex_lock(&lock);
	module->next = all;
	all = module;
	pthread_mutex_unlock(&lock);
	*made = module;
	return CUDA_SUCCESS;
}

/* Takes the module off the list; true if it was there.  */
static bool unlink_module(CUmodule module)
{
	CUmodule *link;
	bool found;

	pthread_mutex_lock(&lock);
	for (link = &all; *link && *link != module; link = &(*link)->next)
		;
	found = *link != NULL;
	if (found)
		*link = module->next;
	pthread_mutex_unlock(&lock);
	return found;
}

void modules_release_context(CUcontext context)
{
	CUmodule *link = &all;

	pthread_mutex_lock(&lock);
	while (*link) {
		CUmodule module = *link;

		if (module->context != context || module->context_id != context->id) {
			link = &module->next;
			continue;
		}
		*link = module->next;
		free_module(module);
	}
	pthread_mutex_unlock(&lock);
}

static CUresult find_function(CUmodule module, const char *name, CUfunction *found)
{
	if (!found || !name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!object_is(module, OBJECT_MODULE))
		return CUDA_ERROR_INVALID_HANDLE;
	for (CUfunction function = module->functions; function; function = function->next)
		if (!strcmp(function->kernel->name, name)) {
			*found = function;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_NOT_FOUND;
}

SIM_API CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	ENTER_CONTEXT("cuModuleLoadData", context);
	return load(module, context, image);
}

SIM_API CUresult cuModuleUnload(CUmodule module)
{
	ENTER_CONTEXT("cuModuleUnload", context);
	if (!object_is(module, OBJECT_MODULE) || !unlink_module(module))
		return CUDA_ERROR_INVALID_HANDLE;
	streams_finish(context); /* what still runs may be its code */
	free_module(module);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	ENTER_CONTEXT("cuModuleGetFunction", context);
	return find_function(module, name, function);
}

SIM_API CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size)
{
	size_t at = 0;

	ENTER("cuFuncGetParamInfo");
	if (!offset)
		return CUDA_ERROR_INVALID_VALUE;
	if (!object_is(function, OBJECT_FUNCTION))
		return CUDA_ERROR_INVALID_HANDLE;
	if (index >= function->kernel->parameter_count)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i <= index; i++) {
		size_t bytes = function->kernel->parameter_bytes[i];

		at = (at + bytes - 1) / bytes * bytes;
		*offset = at;
		at += bytes;
	}
	if (size)
		*size = function->kernel->parameter_bytes[index];
	return CUDA_SUCCESS;
}
