/* Green contexts: a context beside the primary one, which keeps what is made there. The parts of the GPU's processors, of which real
 * ones are made, are not simulated.  */
#include "context/context.h"
#include "driver/api.h"
#include "driver/device.h"
#include "stream/stream.h"

#define CU_GREEN_CTX_DEFAULT_STREAM 1u

struct green {
	struct object object;
	CUcontext context;
};

SIM_API CUresult cuGreenCtxCreate(struct green **made, const void *resources, CUdevice device, unsigned int flags)
{
	struct green *green;
	CUresult result;

	ENTER("cuGreenCtxCreate");
	(void)resources;
	if (!made || flags != CU_GREEN_CTX_DEFAULT_STREAM)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	green = object_new(OBJECT_GREEN, sizeof(*green));
	result = green ? context_make_green(&green->context, device) : CUDA_ERROR_OUT_OF_MEMORY;
	if (result == CUDA_SUCCESS)
		*made = green;
	else if (green)
		object_free(OBJECT_GREEN, green);
	return result;
}

SIM_API CUresult cuGreenCtxDestroy(struct green *green)
{
	ENTER("cuGreenCtxDestroy");
	if (!object_is(green, OBJECT_GREEN))
		return CUDA_ERROR_INVALID_CONTEXT;
	context_end_green(green->context);
	object_free(OBJECT_GREEN, green);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxFromGreenCtx(CUcontext *context, struct green *green)
{
	ENTER("cuCtxFromGreenCtx");
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	if (!object_is(green, OBJECT_GREEN))
		return CUDA_ERROR_INVALID_CONTEXT;
	*context = green->context;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGreenCtxStreamCreate(CUstream *stream, struct green *green, unsigned int flags, int priority)
{
	ENTER("cuGreenCtxStreamCreate");
	(void)priority;
	if (!stream || flags != CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	if (!object_is(green, OBJECT_GREEN))
		return CUDA_ERROR_INVALID_CONTEXT;
	*stream = stream_new(green->context, STREAM_USER, flags);
	return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
