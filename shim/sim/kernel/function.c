/* What is asked about functions.  */
#include "driver/api.h"
#include "kernel/module.h"

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
