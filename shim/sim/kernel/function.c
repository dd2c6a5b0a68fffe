/* What is asked and set about functions: plausible constants, for there is no machine code.  */
#include "driver/api.h"
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

SIM_API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
	ENTER("cuFuncGetAttribute");
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

SIM_API CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
	ENTER("cuFuncSetAttribute");
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

SIM_API CUresult cuFuncSetCacheConfig(CUfunction function, int config)
{
	ENTER("cuFuncSetCacheConfig");
	(void)config;
	return object_is(function, OBJECT_FUNCTION) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
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

SIM_API CUresult cuFuncLoad(CUfunction function)
{
	ENTER_CONTEXT("cuFuncLoad", context);
	return object_is(function, OBJECT_FUNCTION) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
