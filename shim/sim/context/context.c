/* Making and destroying contexts, primary and other; the stack of each thread is in current.c.  */
#include "context/context.h"

#include <pthread.h>

#include "driver/api.h"
#include "driver/device.h"
#include "stream/capture.h"
#include "kernel/module.h"
#include "machine/checkpoint.h"
#include "machine/machine.h"
#include "memory/memory.h"
#include "stream/stream.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUcontext primaries[SIM_MAX_GPUS];
static CUcontext all;
static uint64_t last_id;
static CUresult poison[SIM_MAX_GPUS]; /* after a fault a GPU is lost to the process, even after a reset */

/* The context costs memory of the GPU, which may be full. `lock` is held.  */
static CUresult activate(CUcontext context)
{
	struct sim_process *process = machine_join();
	uint64_t cost = machine()->context_bytes;
	CUresult result = __atomic_load_n(&poison[context->device], __ATOMIC_ACQUIRE);

	if (result != CUDA_SUCCESS)
		return result;
	if (!process || !machine_charge(context->gpu, cost))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = checkpoint_serve();
	if (result == CUDA_SUCCESS)
		result = stream_make_legacy(context);
	if (result != CUDA_SUCCESS) {
		machine_refund(context->gpu, cost);
		return result;
	}
	context->charged = cost;
	context->sticky = CUDA_SUCCESS;
	context->abandoned = false;
	context->peers = 0;
	context->id = ++last_id;
	process->contexts[context->gpu]++;
	context->active = true;
	context->next = all;
	all = context;
	return CUDA_SUCCESS;
}

/* Everything that belongs to the context goes with it. `lock` is held.  */
static void deactivate(CUcontext context)
{
	CUcontext *link = &all;

	__atomic_store_n(&context->abandoned, true, __ATOMIC_RELEASE);
	streams_finish(context);
	context->active = false;
	captures_abandon(context);
	streams_destroy(context);
	memory_release_context(context);
	modules_release_context(context);
	machine_refund(context->gpu, context->charged);
	if (machine_self())
		machine_self()->contexts[context->gpu]--;
	while (*link != context)
		link = &(*link)->next;
	*link = context->next;
}

static CUresult new_context(CUcontext *made, CUdevice device, unsigned flags, bool primary)
{
	CUcontext context = object_new(OBJECT_CONTEXT, sizeof(*context));

	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	context->device = device;
	context->gpu = device_gpu(device);
	context->flags = flags | CU_CTX_MAP_HOST;
	context->primary = primary;
	*made = context;
	return CUDA_SUCCESS;
}

bool context_is(CUcontext context)
{
	return object_is(context, OBJECT_CONTEXT);
}

/* The active primary context of a device, or NULL.  */
static CUcontext context_primary(CUdevice device)
{
	CUcontext context = primaries[device];

	return context && context->active ? context : NULL;
}

void context_fail(CUcontext context, CUresult error)
{
	CUresult none = CUDA_SUCCESS;

	__atomic_compare_exchange_n(&context->sticky, &none, error, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	__atomic_store_n(&poison[context->device], error, __ATOMIC_RELEASE);
}

void contexts_each(void (*call)(CUcontext context, void *data), void *data)
{
	pthread_mutex_lock(&lock);
	for (CUcontext context = all; context; context = context->next)
		call(context, data);
	pthread_mutex_unlock(&lock);
}

/* `lock` is held.  */
static CUresult retain_primary(CUdevice device)
{
	CUresult result = CUDA_SUCCESS;

	if (!primaries[device])
		result = new_context(&primaries[device], device, 0, true);
	if (result == CUDA_SUCCESS && !primaries[device]->active)
		result = activate(primaries[device]);
	if (result == CUDA_SUCCESS)
		primaries[device]->references++;
	return result;
}

/* `lock` is held.  */
static CUresult release_primary(CUdevice device)
{
	if (!primaries[device] || !primaries[device]->references)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (--primaries[device]->references == 0 && primaries[device]->active)
		deactivate(primaries[device]);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	CUresult result;

	ENTER("cuDevicePrimaryCtxRetain");
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	result = retain_primary(device);
	if (result == CUDA_SUCCESS)
		*context = primaries[device];
	pthread_mutex_unlock(&lock);
	return result;
}

SIM_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	CUresult result;

	ENTER("cuDevicePrimaryCtxRelease");
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	result = release_primary(device);
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult context_make_green(CUcontext *made, CUdevice device)
{
	CUcontext context = NULL;
	CUresult result;

	pthread_mutex_lock(&lock);
	result = retain_primary(device);
	if (result == CUDA_SUCCESS) {
		result = new_context(&context, device, 0, false);
		if (result == CUDA_SUCCESS) {
			context->home = primaries[device];
			result = stream_make_legacy(context);
		}
		if (result != CUDA_SUCCESS)
			release_primary(device);
	}
	if (result == CUDA_SUCCESS) {
		context->id = ++last_id;
		context->active = true;
		*made = context;
	} else if (context) {
		object_free(OBJECT_CONTEXT, context);
	}
	pthread_mutex_unlock(&lock);
	return result;
}

/* The handle stays one that can be made current, and says then that it is destroyed (driver 580).  */
void context_end_green(CUcontext context)
{
	pthread_mutex_lock(&lock);
	__atomic_store_n(&context->abandoned, true, __ATOMIC_RELEASE);
	streams_finish(context);
	context->active = false;
	release_primary(context->device);
	pthread_mutex_unlock(&lock);
}

SIM_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	ENTER("cuDevicePrimaryCtxReset");
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	if (context_primary(device))
		deactivate(primaries[device]);
	if (primaries[device])
		primaries[device]->references = 0;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
	ENTER("cuDevicePrimaryCtxGetState");
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	*active = context_primary(device) != NULL;
	*flags = *active ? primaries[device]->flags : 0;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

static CUresult create(CUcontext *made, unsigned int flags, CUdevice device)
{
	CUcontext context;
	CUresult result;

	if (!made || (flags & ~(unsigned)CU_CTX_FLAGS_MASK))
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	result = new_context(&context, device, flags, false);
	if (result == CUDA_SUCCESS) {
		result = activate(context);
		if (result != CUDA_SUCCESS)
			object_free(OBJECT_CONTEXT, context);
	}
	pthread_mutex_unlock(&lock);
	if (result != CUDA_SUCCESS)
		return result;
	current_push(context);
	*made = context;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
	ENTER("cuCtxCreate");
	return create(context, flags, device);
}

SIM_API CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned int flags, CUdevice device)
{
	ENTER("cuCtxCreate");
	return affinity && count ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : create(context, flags, device);
}

SIM_API CUresult cuCtxCreate_v4(CUcontext *context, void **parameters, unsigned int flags, CUdevice device)
{
	ENTER("cuCtxCreate");
	return parameters && parameters[0] ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : create(context, flags, device);
}

/* Not a primary context, nor a green one.  */
static CUresult destroy(CUcontext context)
{
	if (!context_is(context) || context->primary || context->home)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	deactivate(context);
	pthread_mutex_unlock(&lock);
	current_forget(context);
	object_free(OBJECT_CONTEXT, context);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxDestroy_v2(CUcontext context)
{
	ENTER("cuCtxDestroy");
	return destroy(context);
}

SIM_API CUresult cuCtxAttach(CUcontext *made, unsigned int flags)
{
	ENTER_CONTEXT("cuCtxAttach", context);
	if (!made || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (context->primary || context->home)
		return CUDA_ERROR_INVALID_CONTEXT;
	__atomic_add_fetch(&context->attached, 1, __ATOMIC_SEQ_CST);
	*made = context;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxDetach(CUcontext given)
{
	unsigned attached;

	ENTER_CONTEXT("cuCtxDetach", context);
	if (given != context || context->primary || context->home)
		return CUDA_ERROR_INVALID_CONTEXT;
	attached = __atomic_load_n(&context->attached, __ATOMIC_SEQ_CST);
	while (attached)
		if (__atomic_compare_exchange_n(&context->attached, &attached, attached - 1, false, __ATOMIC_SEQ_CST,
						__ATOMIC_SEQ_CST))
			return CUDA_SUCCESS;
	return destroy(context);
}
