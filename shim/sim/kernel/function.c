/* What is asked and set about functions, and occupancy: plausible constants, for there is no machine code.  */
#include "driver/api.h"
#include "driver/device.h"
#include "kernel/module.h"

enum {
	FUNCTION_MAX_THREADS = 0,
	FUNCTION_REGISTERS = 4,
	FUNCTION_PTX_VERSION = 5,
	FUNCTION_BINARY_VERSION = 6,
	FUNCTION_DYNAMIC_SHARED = 8,
	FUNCTION_CARVEOUT = 9,
	FUNCTION_ATTRIBUTES = 16,
};

static CUresult get_attribute(int *value, int attribute, CUfunction function)
{
	if (!value || attribute < 0 || attribute >= FUNCTION_ATTRIBUTES)
		return CUDA_ERROR_INVALID_VALUE;
	if (!object_is(function, OBJECT_FUNCTION))
		return CUDA_ERROR_INVALID_HANDLE;
	switch (attribute) {
	case FUNCTION_MAX_THREADS:
		*value = 1024;
		break;
	case FUNCTION_REGISTERS:
		*value = 16;
		break;
	case FUNCTION_PTX_VERSION:
		*value = 70;
		break;
	case FUNCTION_BINARY_VERSION:
		*value = 90;
		break;
	case FUNCTION_DYNAMIC_SHARED:
		*value = function->dynamic_shared_bytes ? function->dynamic_shared_bytes : 49152;
		break;
	case FUNCTION_CARVEOUT:
		*value = function->carveout;
		break;
	default:
		*value = 0;
	}
	return CUDA_SUCCESS;
}

static CUresult set_attribute(CUfunction function, int attribute, int value)
{
	if (!object_is(function, OBJECT_FUNCTION))
		return CUDA_ERROR_INVALID_HANDLE;
	if (attribute == FUNCTION_DYNAMIC_SHARED && value >= 0 && value <= 232448)
		function->dynamic_shared_bytes = value;
	else if (attribute == FUNCTION_CARVEOUT && value >= -1 && value <= 100)
		function->carveout = value;
	else
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* Of the oldest way to launch, which nothing uses any more; PyCUDA says it before each launch all the same.  */
SIM_API CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z)
{
	ENTER_CONTEXT("cuFuncSetBlockShape", context);
	(void)context;
	if (!object_is(function, OBJECT_FUNCTION))
		return CUDA_ERROR_INVALID_HANDLE;
	return x > 0 && y > 0 && z > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
	ENTER("cuFuncGetAttribute");
	return get_attribute(value, attribute, function);
}

SIM_API CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel kernel, CUdevice device)
{
	ENTER("cuKernelGetAttribute");
	return device_valid(device) ? get_attribute(value, attribute, kernel) : CUDA_ERROR_INVALID_DEVICE;
}

SIM_API CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
	ENTER("cuFuncSetAttribute");
	return set_attribute(function, attribute, value);
}

SIM_API CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device)
{
	ENTER("cuKernelSetAttribute");
	return device_valid(device) ? set_attribute(kernel, attribute, value) : CUDA_ERROR_INVALID_DEVICE;
}

SIM_API CUresult cuFuncSetCacheConfig(CUfunction function, int config)
{
	ENTER("cuFuncSetCacheConfig");
	(void)config;
	return object_is(function, OBJECT_FUNCTION) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

SIM_API CUresult cuFuncGetModule(CUmodule *module, CUfunction function)
{
	ENTER("cuFuncGetModule");
	if (!module)
		return CUDA_ERROR_INVALID_VALUE;
	if (!object_is(function, OBJECT_FUNCTION))
		return CUDA_ERROR_INVALID_HANDLE;
	*module = function->module;
	return CUDA_SUCCESS;
}

static CUresult get_name(const char **name, CUfunction function)
{
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!object_is(function, OBJECT_FUNCTION))
		return CUDA_ERROR_INVALID_HANDLE;
	*name = function->kernel->name;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuFuncGetName(const char **name, CUfunction function)
{
	ENTER("cuFuncGetName");
	return get_name(name, function);
}

SIM_API CUresult cuKernelGetName(const char **name, CUkernel kernel)
{
	ENTER("cuKernelGetName");
	return get_name(name, kernel);
}

static CUresult get_parameter(CUfunction function, size_t index, size_t *offset, size_t *size)
{
	size_t at = 0;

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

SIM_API CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size)
{
	ENTER("cuFuncGetParamInfo");
	return get_parameter(function, index, offset, size);
}

SIM_API CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size)
{
	ENTER("cuKernelGetParamInfo");
	return get_parameter(kernel, index, offset, size);
}

SIM_API CUresult cuFuncIsLoaded(int *state, CUfunction function)
{
	ENTER("cuFuncIsLoaded");
	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	*state = 1;
	return object_is(function, OBJECT_FUNCTION) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

SIM_API CUresult cuFuncLoad(CUfunction function)
{
	ENTER_CONTEXT("cuFuncLoad", context);
	return object_is(function, OBJECT_FUNCTION) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

SIM_API CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
	ENTER_CONTEXT("cuKernelGetFunction", context);
	if (!function)
		return CUDA_ERROR_INVALID_VALUE;
	if (!object_is(kernel, OBJECT_FUNCTION))
		return CUDA_ERROR_INVALID_HANDLE;
	*function = kernel;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
	ENTER("cuKernelGetLibrary");
	if (!library)
		return CUDA_ERROR_INVALID_VALUE;
	if (!object_is(kernel, OBJECT_FUNCTION))
		return CUDA_ERROR_INVALID_HANDLE;
	*library = kernel->module;
	return CUDA_SUCCESS;
}

static CUresult blocks(int *count, CUfunction function, int block_size)
{
	if (!count || block_size <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!object_is(function, OBJECT_FUNCTION))
		return CUDA_ERROR_INVALID_HANDLE;
	*count = block_size > 1024 ? 0 : 2048 / block_size > 32 ? 32 : 2048 / block_size;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, CUfunction function, int block_size, size_t shared)
{
	ENTER_CONTEXT("cuOccupancyMaxActiveBlocksPerMultiprocessor", context);
	(void)shared;
	return blocks(count, function, block_size);
}

SIM_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, CUfunction function, int block_size,
								      size_t shared, unsigned int flags)
{
	ENTER_CONTEXT("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", context);
	(void)shared;
	return flags > 1 ? CUDA_ERROR_INVALID_VALUE : blocks(count, function, block_size);
}

SIM_API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function, void *shared_of_block,
						  size_t shared, int limit)
{
	ENTER_CONTEXT("cuOccupancyMaxPotentialBlockSize", context);
	(void)shared_of_block, (void)shared;
	if (!grid || !block)
		return CUDA_ERROR_INVALID_VALUE;
	if (!object_is(function, OBJECT_FUNCTION))
		return CUDA_ERROR_INVALID_HANDLE;
	*block = limit > 0 && limit < 1024 ? limit : 1024;
	*grid = 2 * 132;
	return CUDA_SUCCESS;
}
