/* The wrappers that answer from shadows; each passes its call on while the process is on the GPU.  */
#include "context_depth/shadow/shadow.h"

#include "context_depth/bookkeeping_gate.h"
#include "driver/hook.h"
#include "gpu/contexts.h"
#include "state/shim_state.h"

/* A wrapper's whole body: the driver while it can be asked, else the shadow, else wait for the driver.  */
#define ASK(driver_call, shadow)                                                                                    \
	for (;;) {                                                                                                  \
		struct books_pass pass;                                                                             \
		CUresult result;                                                                                    \
                                                                                                                    \
		if (books_enter(&pass)) {                                                                           \
			result = (driver_call);                                                                     \
			books_leave(&pass);                                                                         \
			return result;                                                                              \
		}                                                                                                   \
		result = (shadow);                                                                                  \
		if (result != SHADOW_NONE)                                                                          \
			return result;                                                                              \
		result = books_wait();                                                                              \
		if (result != CUDA_SUCCESS)                                                                         \
			return result;                                                                              \
	}

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

static CUresult on_shadow_cuCtxGetCurrent(void *real, CUcontext *context)
{
	ASK(real_get_current(real, context), get_current(context))
}
HOOK(shadow_cuCtxGetCurrent, (CUcontext * context), context)

static CUresult real_set_current(void *real, CUcontext context)
{
	CUresult result = ((CUresult(*)(CUcontext))real)(context);

	if (result == CUDA_SUCCESS)
		shadows_saw_set(context);
	return result;
}

static CUresult on_shadow_cuCtxSetCurrent(void *real, CUcontext context)
{
	ASK(real_set_current(real, context), shadows_set(context))
}
HOOK(shadow_cuCtxSetCurrent, (CUcontext context), context)

static CUresult real_push_current(void *real, CUcontext context)
{
	CUresult result = ((CUresult(*)(CUcontext))real)(context);

	if (result == CUDA_SUCCESS)
		shadows_saw_push(context);
	return result;
}

static CUresult on_shadow_cuCtxPushCurrent(void *real, CUcontext context)
{
	ASK(real_push_current(real, context), shadows_push(context))
}
HOOK(shadow_cuCtxPushCurrent, (CUcontext context), context)

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

static CUresult on_shadow_cuCtxPopCurrent(void *real, CUcontext *context)
{
	ASK(real_pop_current(real, context), shadows_pop(context))
}
HOOK(shadow_cuCtxPopCurrent, (CUcontext * context), context)

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

static CUresult on_shadow_cuCtxGetDevice(void *real, CUdevice *device)
{
	ASK(((CUresult(*)(CUdevice *))real)(device), current_device(device))
}
HOOK(shadow_cuCtxGetDevice, (CUdevice * device), device)

static CUresult on_shadow_cuCtxGetDevice_v2(void *real, CUdevice *device, CUcontext context)
{
	ASK(((CUresult(*)(CUdevice *, CUcontext))real)(device, context),
	    context ? device_of(device, context) : current_device(device))
}
HOOK(shadow_cuCtxGetDevice_v2, (CUdevice * device, CUcontext context), device, context)

static CUresult real_exchange_mode(void *real, int *mode)
{
	int to = mode ? *mode : 0;
	CUresult result = ((CUresult(*)(int *))real)(mode);

	if (result == CUDA_SUCCESS)
		shadows_saw_mode(to);
	return result;
}

static CUresult on_shadow_cuThreadExchangeStreamCaptureMode(void *real, int *mode)
{
	ASK(real_exchange_mode(real, mode), shadows_exchange_mode(mode))
}
HOOK(shadow_cuThreadExchangeStreamCaptureMode, (int *mode), mode)

/* What the machine is like.  */

static CUresult on_shadow_cuInit(void *real, unsigned int flags)
{
	ASK(((CUresult(*)(unsigned int))real)(flags), flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS)
}
HOOK(shadow_cuInit, (unsigned int flags), flags)

static CUresult on_shadow_cuDriverGetVersion(void *real, int *version)
{
	ASK(((CUresult(*)(int *))real)(version), shadow_driver_version(version))
}
HOOK(shadow_cuDriverGetVersion, (int *version), version)

static CUresult on_shadow_cuGetErrorName(void *real, CUresult error, const char **text)
{
	ASK(((CUresult(*)(CUresult, const char **))real)(error, text), shadow_error_text(error, text, true))
}
HOOK(shadow_cuGetErrorName, (CUresult error, const char **text), error, text)

static CUresult on_shadow_cuGetErrorString(void *real, CUresult error, const char **text)
{
	ASK(((CUresult(*)(CUresult, const char **))real)(error, text), shadow_error_text(error, text, false))
}
HOOK(shadow_cuGetErrorString, (CUresult error, const char **text), error, text)

static CUresult on_shadow_cuDeviceGetCount(void *real, int *count)
{
	ASK(((CUresult(*)(int *))real)(count), shadow_device_count(count))
}
HOOK(shadow_cuDeviceGetCount, (int *count), count)

static CUresult on_shadow_cuDeviceGet(void *real, CUdevice *device, int ordinal)
{
	ASK(((CUresult(*)(CUdevice *, int))real)(device, ordinal), shadow_device_get(device, ordinal))
}
HOOK(shadow_cuDeviceGet, (CUdevice * device, int ordinal), device, ordinal)

static CUresult on_shadow_cuDeviceGetAttribute(void *real, int *value, int attribute, CUdevice device)
{
	ASK(((CUresult(*)(int *, int, CUdevice))real)(value, attribute, device),
	    shadow_device_attribute(value, attribute, device))
}
HOOK(shadow_cuDeviceGetAttribute, (int *value, int attribute, CUdevice device), value, attribute, device)

static CUresult on_shadow_cuDeviceGetName(void *real, char *name, int size, CUdevice device)
{
	ASK(((CUresult(*)(char *, int, CUdevice))real)(name, size, device), shadow_device_name(name, size, device))
}
HOOK(shadow_cuDeviceGetName, (char *name, int size, CUdevice device), name, size, device)

static CUresult on_shadow_cuDeviceGetPCIBusId(void *real, char *name, int size, CUdevice device)
{
	ASK(((CUresult(*)(char *, int, CUdevice))real)(name, size, device), shadow_device_pci_id(name, size, device))
}
HOOK(shadow_cuDeviceGetPCIBusId, (char *name, int size, CUdevice device), name, size, device)

static CUresult on_shadow_cuDeviceGetUuid(void *real, void *uuid, CUdevice device)
{
	ASK(((CUresult(*)(void *, CUdevice))real)(uuid, device), shadow_device_uuid(uuid, device))
}
HOOK(shadow_cuDeviceGetUuid, (void *uuid, CUdevice device), uuid, device)

static CUresult on_shadow_cuDeviceTotalMem(void *real, size_t *bytes, CUdevice device)
{
	ASK(((CUresult(*)(size_t *, CUdevice))real)(bytes, device), shadow_device_total(bytes, device))
}
HOOK(shadow_cuDeviceTotalMem, (size_t *bytes, CUdevice device), bytes, device)

static CUresult on_shadow_cuDevicePrimaryCtxGetState(void *real, CUdevice device, unsigned int *flags, int *active)
{
	ASK(((CUresult(*)(CUdevice, unsigned int *, int *))real)(device, flags, active),
	    shadow_primary_state(device, flags, active))
}
HOOK(shadow_cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int *flags, int *active), device, flags, active)

/* Memory.  */

static CUresult on_shadow_cuMemGetInfo(void *real, size_t *free_bytes, size_t *total_bytes)
{
	ASK(((CUresult(*)(size_t *, size_t *))real)(free_bytes, total_bytes),
	    shadow_memory_info(free_bytes, total_bytes))
}
HOOK(shadow_cuMemGetInfo, (size_t * free_bytes, size_t *total_bytes), free_bytes, total_bytes)

/* Below the hook of the same name, which asks about the witness for memory that is ours.  */
static CUresult on_shadow_cuPointerGetAttribute(void *real, void *data, int attribute, CUdeviceptr address)
{
	ASK(((CUresult(*)(void *, int, CUdeviceptr))real)(data, attribute, address),
	    shadow_pointer(data, attribute, address, false))
}
HOOK(shadow_cuPointerGetAttribute, (void *data, int attribute, CUdeviceptr address), data, attribute, address)

static CUresult pointer_attributes(unsigned int count, const int *attributes, void **data, CUdeviceptr address)
{
	CUresult result = count && attributes && data ? CUDA_SUCCESS : SHADOW_NONE;

	for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++)
		result = shadow_pointer(data[i], attributes[i], address, true);
	return result;
}

static CUresult on_shadow_cuPointerGetAttributes(void *real, unsigned int count, int *attributes, void **data,
						 CUdeviceptr address)
{
	ASK(((CUresult(*)(unsigned int, int *, void **, CUdeviceptr))real)(count, attributes, data, address),
	    pointer_attributes(count, attributes, data, address))
}
HOOK(shadow_cuPointerGetAttributes, (unsigned int count, int *attributes, void **data, CUdeviceptr address), count,
     attributes, data, address)

/* All work was drained, and none has come since.  */

static CUresult on_shadow_cuEventQuery(void *real, void *event)
{
	ASK(((CUresult(*)(void *))real)(event), CUDA_SUCCESS)
}
HOOK(shadow_cuEventQuery, (void *event), event)

static CUresult on_shadow_cuStreamQuery(void *real, CUstream stream)
{
	ASK(((CUresult(*)(CUstream))real)(stream), CUDA_SUCCESS)
}
HOOK(shadow_cuStreamQuery, (CUstream stream), stream)

static CUresult on_shadow_cuStreamWaitEvent(void *real, CUstream stream, void *event, unsigned int flags)
{
	ASK(((CUresult(*)(CUstream, void *, unsigned int))real)(stream, event, flags), CUDA_SUCCESS)
}
HOOK(shadow_cuStreamWaitEvent, (CUstream stream, void *event, unsigned int flags), stream, event, flags)

/* Say that the stream is not capturing: a process with an open capture is not parked.  */
static CUresult not_capturing(int *status)
{
	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	*status = 0; /* CU_STREAM_CAPTURE_STATUS_NONE */
	return CUDA_SUCCESS;
}

static CUresult on_shadow_cuStreamIsCapturing(void *real, CUstream stream, int *status)
{
	ASK(((CUresult(*)(CUstream, int *))real)(stream, status), not_capturing(status))
}
HOOK(shadow_cuStreamIsCapturing, (CUstream stream, int *status), stream, status)

/* In every version of this call the second argument is the status, and nothing else is written for a stream that is not
 * capturing.  */
static CUresult on_shadow_cuStreamGetCaptureInfo(void *real, CUstream stream, int *status, void *a2, void *a3, void *a4,
						 void *a5, void *a6)
{
	ASK(((CUresult(*)(CUstream, int *, void *, void *, void *, void *, void *))real)(stream, status, a2, a3, a4, a5,
											 a6),
	    not_capturing(status))
}
HOOK(shadow_cuStreamGetCaptureInfo, (CUstream stream, int *status, void *a2, void *a3, void *a4, void *a5, void *a6),
     stream, status, a2, a3, a4, a5, a6)

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
