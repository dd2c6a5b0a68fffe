/* Green contexts: parts of a GPU's processors, with a context of their own beside the primary one, which keeps what is made
 * there. All of them compute as fast as the whole.  */
#include <string.h>

#include "context/context.h"
#include "driver/api.h"
#include "driver/device.h"
#include "stream/stream.h"

#define RESOURCE_SM 1
#define LEAST_PROCESSORS 8u
#define PROCESSORS 132u
#define CU_GREEN_CTX_DEFAULT_STREAM 1u

typedef struct {
	int type;
	unsigned char padding[92];
	union {
		struct {
			unsigned int count, least, aligned;
		} sm;
		unsigned char oversize[48];
	};
} CUdevResource;

struct green {
	struct object object;
	CUcontext context;
};

static const CUdevResource whole = {.type = RESOURCE_SM, .sm = {PROCESSORS, LEAST_PROCESSORS, LEAST_PROCESSORS}};
static char descriptor; /* of any resources: they are not kept apart */

SIM_API CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, int type)
{
	ENTER("cuDeviceGetDevResource");
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!resource || type != RESOURCE_SM)
		return CUDA_ERROR_INVALID_VALUE;
	*resource = whole;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDevSmResourceSplitByCount(CUdevResource *groups, unsigned int *count, const CUdevResource *from,
					     CUdevResource *remaining, unsigned int flags, unsigned int least)
{
	unsigned each = (least + LEAST_PROCESSORS - 1) / LEAST_PROCESSORS * LEAST_PROCESSORS, made;

	ENTER("cuDevSmResourceSplitByCount");
	(void)flags;
	if (!count || !from || from->type != RESOURCE_SM)
		return CUDA_ERROR_INVALID_VALUE;
	each = each ? each : LEAST_PROCESSORS;
	made = from->sm.count / each;
	made = !groups || made < *count ? made : *count;
	for (unsigned i = 0; groups && i < made; i++) {
		groups[i] = *from;
		groups[i].sm.count = each;
	}
	if (remaining) {
		*remaining = *from;
		remaining->sm.count -= made * each;
	}
	*count = made;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDevResourceGenerateDesc(void **made, const CUdevResource *resources, unsigned int count)
{
	ENTER("cuDevResourceGenerateDesc");
	if (!made || !resources || !count || resources->type != RESOURCE_SM)
		return CUDA_ERROR_INVALID_VALUE;
	*made = &descriptor;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGreenCtxCreate(struct green **made, const void *resources, CUdevice device, unsigned int flags)
{
	struct green *green;
	CUresult result;

	ENTER("cuGreenCtxCreate");
	if (!made || resources != &descriptor || flags != CU_GREEN_CTX_DEFAULT_STREAM)
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
	if (!stream || flags != CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	if (!object_is(green, OBJECT_GREEN))
		return CUDA_ERROR_INVALID_CONTEXT;
	*stream = stream_new(green->context, STREAM_USER, flags, priority);
	return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
