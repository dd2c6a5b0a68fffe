/* The wrappers that answer from shadows; each passes its call on while the process is on the GPU.  */
#include "context_depth/shadow/shadow.h"

#include "context_depth/bookkeeping_gate.h"
#include "driver/hook.h"
#include "gpu/contexts.h"
#include "state/shim_state.h"

/* SHADOW_OF(name, (parameters), (arguments), driver_call, shadow): the wrapper that asks the driver while it can be asked, else the
 * shadow, else waits for the driver.  */
#define SHADOW_OF(name, parameters, arguments, driver_call, shadow)                                                 \
	static CUresult on_shadow_##name(void *real, BARE parameters)                                               \
	{                                                                                                           \
		for (;;) {                                                                                          \
			struct books_pass pass;                                                                     \
			CUresult result;                                                                            \
                                                                                                                    \
			if (books_enter(&pass)) {                                                                   \
				result = (driver_call);                                                             \
				books_leave(&pass);                                                                 \
				return result;                                                                      \
			}                                                                                           \
			result = (shadow);                                                                          \
			if (result != SHADOW_NONE)                                                                  \
				return result;                                                                      \
			result = books_wait();                                                                      \
			if (result != CUDA_SUCCESS)                                                                 \
				return result;                                                                      \
		}                                                                                                   \
	}                                                                                                           \
	HOOK(shadow_##name, parameters, BARE arguments)
#define SHADOW(name, parameters, arguments, shadow)                                                                 \
	SHADOW_OF(name, parameters, arguments, ((CUresult(*) parameters)real)arguments, shadow)

/* What is current.  */

static CUresult real_get_current(void *real, CUcontext *context)
{
	CUresult result = ((CUresult(*)(CUcontext *))real)(context);

	if (result == CUDA_SUCCESS && context)
		shadows_saw_current(*context);
	return result;
}

static CUresult get_current(CUcontext *context)
{
	return context && shadows_current(context) ? CUDA_SUCCESS : SHADOW_NONE;
}

SHADOW_OF(cuCtxGetCurrent, (CUcontext * context), (context), real_get_current(real, context), get_current(context))

static CUresult real_set_current(void *real, CUcontext context)
{
	CUresult result = ((CUresult(*)(CUcontext))real)(context);

	if (result == CUDA_SUCCESS)
		shadows_saw_set(context);
	return result;
}

SHADOW_OF(cuCtxSetCurrent, (CUcontext context), (context), real_set_current(real, context), shadows_set(context))

static CUresult real_push_current(void *real, CUcontext context)
{
	CUresult result = ((CUresult(*)(CUcontext))real)(context);

	if (result == CUDA_SUCCESS)
		shadows_saw_push(context);
	return result;
}

SHADOW_OF(cuCtxPushCurrent, (CUcontext context), (context), real_push_current(real, context), shadows_push(context))

static CUresult real_pop_current(void *real, CUcontext *context)
{
	CUcontext popped = NULL;
	CUresult result = ((CUresult(*)(CUcontext *))real)(&popped);

	if (result == CUDA_SUCCESS) {
		shadows_saw_pop(popped);
		if (context)
			*context = popped;
	}
	return result;
}

SHADOW_OF(cuCtxPopCurrent, (CUcontext * context), (context), real_pop_current(real, context), shadows_pop(context))

static CUresult device_of(CUdevice *device, CUcontext handle)
{
	struct context *context = context_known(handle);

	if (!context || !device)
		return SHADOW_NONE;
	*device = context->device->ordinal;
	return CUDA_SUCCESS;
}

static CUresult current_device(CUdevice *device)
{
	CUcontext current;

	if (!shadows_current(&current))
		return SHADOW_NONE;
	return current ? device_of(device, current) : CUDA_ERROR_INVALID_CONTEXT;
}

SHADOW(cuCtxGetDevice, (CUdevice * device), (device), current_device(device))
SHADOW(cuCtxGetDevice_v2, (CUdevice * device, CUcontext context),
       (device, context), context ? device_of(device, context) : current_device(device))

static CUresult real_exchange_mode(void *real, int *mode)
{
	int to = mode ? *mode : 0;
	CUresult result = ((CUresult(*)(int *))real)(mode);

	if (result == CUDA_SUCCESS)
		shadows_saw_mode(to);
	return result;
}

SHADOW_OF(cuThreadExchangeStreamCaptureMode, (int *mode),
	  (mode), real_exchange_mode(real, mode), shadows_exchange_mode(mode))

/* What the machine is like.  */

SHADOW(cuInit, (unsigned int flags), (flags), flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS)
SHADOW(cuDriverGetVersion, (int *version), (version), shadow_driver_version(version))
SHADOW(cuGetErrorName, (CUresult error, const char **text), (error, text), shadow_error_text(error, text, true))
SHADOW(cuGetErrorString, (CUresult error, const char **text), (error, text), shadow_error_text(error, text, false))
SHADOW(cuDeviceGetCount, (int *count), (count), shadow_device_count(count))
SHADOW(cuDeviceGet, (CUdevice * device, int ordinal), (device, ordinal), shadow_device_get(device, ordinal))
SHADOW(cuDeviceGetAttribute, (int *value, int attribute, CUdevice device),
       (value, attribute, device), shadow_device_attribute(value, attribute, device))
SHADOW(cuDeviceGetName, (char *name, int size, CUdevice device),
       (name, size, device), shadow_device_name(name, size, device))
SHADOW(cuDeviceGetPCIBusId, (char *name, int size, CUdevice device),
       (name, size, device), shadow_device_pci_id(name, size, device))
SHADOW(cuDeviceGetUuid, (void *uuid, CUdevice device), (uuid, device), shadow_device_uuid(uuid, device))
SHADOW(cuDeviceTotalMem, (size_t *bytes, CUdevice device), (bytes, device), shadow_device_total(bytes, device))
SHADOW(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int *flags, int *active),
       (device, flags, active), shadow_primary_state(device, flags, active))

/* Memory.  */

SHADOW(cuMemGetInfo, (size_t * free_bytes, size_t *total_bytes),
       (free_bytes, total_bytes), shadow_memory_info(free_bytes, total_bytes))

/* Below the hook of the same name, which asks about the witness for memory that is ours.  */
SHADOW(cuPointerGetAttribute, (void *data, int attribute, CUdeviceptr address),
       (data, attribute, address), shadow_pointer(data, attribute, address, false))

static CUresult pointer_attributes(unsigned int count, const int *attributes, void **data, CUdeviceptr address)
{
	CUresult result = count && attributes && data ? CUDA_SUCCESS : SHADOW_NONE;

	for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++)
		result = shadow_pointer(data[i], attributes[i], address, true);
	return result;
}

SHADOW(cuPointerGetAttributes, (unsigned int count, int *attributes, void **data, CUdeviceptr address),
       (count, attributes, data, address), pointer_attributes(count, attributes, data, address))

/* All work was drained, and none has come since.  */

SHADOW(cuEventQuery, (void *event), (event), CUDA_SUCCESS)
SHADOW(cuStreamQuery, (CUstream stream), (stream), CUDA_SUCCESS)
SHADOW(cuStreamWaitEvent, (CUstream stream, void *event, unsigned int flags), (stream, event, flags), CUDA_SUCCESS)

/* Say that the stream is not capturing: a process with an open capture is not parked.  */
static CUresult not_capturing(int *status)
{
	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	*status = 0; /* CU_STREAM_CAPTURE_STATUS_NONE */
	return CUDA_SUCCESS;
}

SHADOW(cuStreamIsCapturing, (CUstream stream, int *status), (stream, status), not_capturing(status))

/* In every version of this call the second argument is the status, and nothing else is written for a stream that is not
 * capturing.  */
SHADOW(cuStreamGetCaptureInfo, (CUstream stream, int *status, void *a2, void *a3, void *a4, void *a5, void *a6),
       (stream, status, a2, a3, a4, a5, a6), not_capturing(status))

#define SHADOW_ROW(function, name, version) {name, version, &hook_shadow_##function},
static const struct hook_name shadow_names[] = {
#include "driver/entry_points.h"
};

/* A call waits instead of being answered if more copies of the driver stand behind its name than a hook has places for.  */
void *shadow_for(const char *name, int version, void *real)
{
	struct hook *hook = hook_named(shadow_names, sizeof(shadow_names) / sizeof(shadow_names[0]), name, version);

	return hook ? hook_instance(hook, real) : NULL;
}
