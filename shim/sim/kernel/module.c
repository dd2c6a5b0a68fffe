/* cuModule*, cuLibrary* and cuKernel*: PTX text is searched for `.entry NAME`; names that are built in become
 * functions.  */
#include "kernel/module.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/api.h"
#include "graph/capture.h"

#define NAME_SIZE 128

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUmodule all;

static CUresult add_function(CUmodule module, const char *name, CUfunction **end)
{
	const struct kernel *kernel = kernel_named(name);
	CUfunction function;

	if (!kernel)
		return CUDA_SUCCESS; /* not an error until it is asked for */
	function = object_new(OBJECT_FUNCTION, sizeof(*function));
	if (!function)
		return CUDA_ERROR_OUT_OF_MEMORY;
	function->module = module;
	function->kernel = kernel;
	function->carveout = -1;
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
			result = add_function(module, name, &end);
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
	module->context = context ? context_home(context) : NULL;
	module->context_id = context ? context_home(context)->id : 0;
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

static CUresult load_file(CUmodule *made, CUcontext context, const char *path)
{
	FILE *file = path ? fopen(path, "rbe") : NULL;
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	char *image = NULL;
	long size;

	if (!path)
		return CUDA_ERROR_INVALID_VALUE;
	if (!file)
		return CUDA_ERROR_FILE_NOT_FOUND;
	if (!fseek(file, 0, SEEK_END) && (size = ftell(file)) >= 0 && (image = calloc(1, (size_t)size + 4))) {
		rewind(file);
		result = fread(image, 1, (size_t)size, file) == (size_t)size ? load(made, context, image)
									     : CUDA_ERROR_INVALID_IMAGE;
	}
	free(image);
	fclose(file);
	return result;
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

static unsigned count_functions(CUmodule module)
{
	unsigned count = 0;

	for (CUfunction function = module->functions; function; function = function->next)
		count++;
	return count;
}

SIM_API CUresult cuModuleLoad(CUmodule *module, const char *path)
{
	ENTER_CONTEXT("cuModuleLoad", context);
	return load_file(module, context, path);
}

SIM_API CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	ENTER_CONTEXT("cuModuleLoadData", context);
	return load(module, context, image);
}

SIM_API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, int *options, void **values)
{
	ENTER_CONTEXT("cuModuleLoadDataEx", context);
	(void)count, (void)options, (void)values; /* they are for the compiler */
	return load(module, context, image);
}

SIM_API CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
	ENTER_CONTEXT("cuModuleLoadFatBinary", context);
	return load(module, context, image);
}

SIM_API CUresult cuModuleUnload(CUmodule module)
{
	ENTER_CONTEXT("cuModuleUnload", context);
	if (!object_is(module, OBJECT_MODULE) || !module->context || !unlink_module(module))
		return CUDA_ERROR_INVALID_HANDLE;
	streams_finish(context); /* what still runs may be its code */
	free_module(module);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuModuleGetLoadingMode(int *mode)
{
	ENTER("cuModuleGetLoadingMode");
	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = 2; /* lazy */
	return CUDA_SUCCESS;
}

SIM_API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	ENTER_CONTEXT("cuModuleGetFunction", context);
	return find_function(module, name, function);
}

SIM_API CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule module)
{
	ENTER("cuModuleGetFunctionCount");
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	if (!object_is(module, OBJECT_MODULE))
		return CUDA_ERROR_INVALID_HANDLE;
	*count = count_functions(module);
	return CUDA_SUCCESS;
}

/* PTX variables are not simulated.  */
SIM_API CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module, const char *name)
{
	ENTER_CONTEXT("cuModuleGetGlobal", context);
	if ((!address && !size) || !name)
		return CUDA_ERROR_INVALID_VALUE;
	return object_is(module, OBJECT_MODULE) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

SIM_API CUresult cuLibraryLoadData(CUlibrary *library, const void *image, int *jit_options, void **jit_values,
				   unsigned int jit_count, int *options, void **values, unsigned int count)
{
	ENTER("cuLibraryLoadData");
	(void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
	return load(library, NULL, image);
}

SIM_API CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit_options, void **jit_values,
				       unsigned int jit_count, int *options, void **values, unsigned int count)
{
	ENTER("cuLibraryLoadFromFile");
	(void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
	return load_file(library, NULL, path);
}

SIM_API CUresult cuLibraryUnload(CUlibrary library)
{
	ENTER("cuLibraryUnload");
	if (!object_is(library, OBJECT_MODULE) || library->context || !unlink_module(library))
		return CUDA_ERROR_INVALID_HANDLE;
	free_module(library);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	ENTER("cuLibraryGetKernel");
	return find_function(library, name, kernel);
}

SIM_API CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary library)
{
	ENTER("cuLibraryGetKernelCount");
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	if (!object_is(library, OBJECT_MODULE))
		return CUDA_ERROR_INVALID_HANDLE;
	*count = count_functions(library);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int count, CUlibrary library)
{
	ENTER("cuLibraryEnumerateKernels");
	if (!kernels)
		return CUDA_ERROR_INVALID_VALUE;
	if (!object_is(library, OBJECT_MODULE))
		return CUDA_ERROR_INVALID_HANDLE;
	for (CUfunction function = library->functions; function && count; function = function->next, count--)
		*kernels++ = function;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	ENTER_CONTEXT("cuLibraryGetModule", context);
	if (!module)
		return CUDA_ERROR_INVALID_VALUE;
	if (!object_is(library, OBJECT_MODULE))
		return CUDA_ERROR_INVALID_HANDLE;
	*module = library;
	return CUDA_SUCCESS;
}
