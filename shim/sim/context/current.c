/* The stack of contexts of each thread, and what is asked of the current one.  */
#include "context/context.h"
#include "driver/api.h"
#include "driver/device.h"
#include "stream/capture.h"
#include "pool/pool.h"
#include "stream/stream.h"

#define STACK_DEPTH 64

static __thread CUcontext stack[STACK_DEPTH];
static __thread unsigned depth;

CUresult context_current(CUcontext *context)
{
	CUcontext top = depth ? stack[depth - 1] : NULL;

	if (!top)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!context_is(top) || !top->active)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	*context = top;
	return __atomic_load_n(&top->sticky, __ATOMIC_ACQUIRE);
}

void current_push(CUcontext context)
{
	if (depth < STACK_DEPTH)
		stack[depth++] = context;
}

void current_forget(CUcontext context)
{
	if (depth && stack[depth - 1] == context)
		depth--;
}

SIM_API CUresult cuCtxGetCurrent(CUcontext *context)
{
	ENTER("cuCtxGetCurrent");
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	*context = depth ? stack[depth - 1] : NULL;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxSetCurrent(CUcontext context)
{
	ENTER("cuCtxSetCurrent");
	if (context && !context_is(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!context)
		depth -= depth ? 1 : 0;
	else if (depth)
		stack[depth - 1] = context;
	else
		current_push(context);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	ENTER("cuCtxPushCurrent");
	if (!context_is(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (depth == STACK_DEPTH)
		return CUDA_ERROR_OUT_OF_MEMORY;
	current_push(context);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	ENTER("cuCtxPopCurrent");
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	depth--;
	if (context)
		*context = stack[depth];
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetDevice(CUdevice *device)
{
	CUcontext context;

	ENTER("cuCtxGetDevice");
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	context = depth ? stack[depth - 1] : NULL;
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!context_is(context))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	*device = context->device;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
	ENTER("cuCtxGetDevice");
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	if (!context_is(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	*device = context->device;
	return CUDA_SUCCESS;
}

static CUresult synchronise(CUcontext context)
{
	CUresult result = capture_forbids_context(context);

	if (result != CUDA_SUCCESS)
		return result;
	streams_finish(context);
	pools_synchronised();
	return context->sticky;
}

SIM_API CUresult cuCtxSynchronize(void)
{
	ENTER_CONTEXT("cuCtxSynchronize", context);
	return synchronise(context);
}

SIM_API CUresult cuCtxSynchronize_v2(CUcontext context)
{
	ENTER("cuCtxSynchronize");
	if (!context_is(context) || !context->active)
		return CUDA_ERROR_INVALID_CONTEXT;
	return context->sticky != CUDA_SUCCESS ? context->sticky : synchronise(context);
}

SIM_API CUresult cuCtxSetLimit(int limit, size_t value)
{
	ENTER_CONTEXT("cuCtxSetLimit", context);
	(void)value; /* nothing here has a limit */
	if (limit < 0 || limit > 6)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	ENTER_CONTEXT("cuCtxEnablePeerAccess", context);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!context_is(peer) || !peer->active)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (peer->device == context->device)
		return CUDA_ERROR_INVALID_DEVICE;
	if (context->peers & (1u << peer->device))
		return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	context->peers |= 1u << peer->device;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
	ENTER_CONTEXT("cuCtxDisablePeerAccess", context);
	if (!context_is(peer))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!(context->peers & (1u << peer->device)))
		return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	context->peers &= ~(1u << peer->device);
	return CUDA_SUCCESS;
}
