/* cuGetErrorName and cuGetErrorString: they need no cuInit.  */
#include "driver/api.h"

SIM_API CUresult cuGetErrorName(CUresult error, const char **text)
{
	if (!text)
		return CUDA_ERROR_INVALID_VALUE;
	switch ((int)error) {
	case CUDA_SUCCESS:
		*text = "CUDA_SUCCESS";
		return CUDA_SUCCESS;
#define ERROR(name, number, words)              \
	case number:                            \
		*text = "CUDA_ERROR_" #name;    \
		return CUDA_SUCCESS;
#include "../../src/driver/cuda_errors.h"
	default:
		*text = NULL;
		return CUDA_ERROR_INVALID_VALUE;
	}
}

SIM_API CUresult cuGetErrorString(CUresult error, const char **text)
{
	if (!text)
		return CUDA_ERROR_INVALID_VALUE;
	switch ((int)error) {
	case CUDA_SUCCESS:
		*text = "no error";
		return CUDA_SUCCESS;
#define ERROR(name, number, words)      \
	case number:                    \
		*text = words;          \
		return CUDA_SUCCESS;
#include "../../src/driver/cuda_errors.h"
	default:
		*text = NULL;
		return CUDA_ERROR_INVALID_VALUE;
	}
}
