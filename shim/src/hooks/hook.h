/* Hand-written hooks: functions that do more than pass the gate. A hook may stand before several driver pointers at
 * once (versions, the per-thread variants, two copies of the driver), so each has a few instances, one a pointer.  */
#ifndef AFFINODE_HOOK_H
#define AFFINODE_HOOK_H

#include <pthread.h>

#include "driver/cuda_types.h"
#include "gate/gate.h"

#define HOOK_INSTANCES 4

struct hook {
	void *reals[HOOK_INSTANCES];
	void *const thunks[HOOK_INSTANCES];
};

struct hook_name {
	const char *name;
	int version;
	struct hook *hook;
};

/* The hook of a list for this name, as hook_for; and its instance with `real` behind it, NULL: all are taken.  */
struct hook *hook_named(const struct hook_name *names, size_t count, const char *name, int version);
void *hook_instance(struct hook *hook, void *real);

/* A thread that is being cancelled ends after the hook: a hook holds locks, and nobody would give them back.  */
static inline int cancellation_off(void)
{
	int before = PTHREAD_CANCEL_ENABLE;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}

static inline void cancellation_restore(const int *before)
{
	pthread_setcancelstate(*before, NULL);
}

#define WITHOUT_CANCELLATION() \
	const int cancellation_before __attribute__((cleanup(cancellation_restore), unused)) = cancellation_off()

/* HOOK(name, (parameters), arguments…) after `static CUresult on_name(void *real, parameters)`.  */
#define HOOK_INSTANCE(name, n, parameters, ...)                                                                     \
	static CUresult name##_at_##n parameters                                                                    \
	{                                                                                                           \
		WITHOUT_CANCELLATION();                                                                             \
		return on_##name(hook_##name.reals[n], __VA_ARGS__);                                                \
	}
#define HOOK(name, parameters, ...)                                                                                 \
	static CUresult name##_at_0 parameters;                                                                     \
	static CUresult name##_at_1 parameters;                                                                     \
	static CUresult name##_at_2 parameters;                                                                     \
	static CUresult name##_at_3 parameters;                                                                     \
	struct hook hook_##name = {.thunks = {(void *)name##_at_0, (void *)name##_at_1, (void *)name##_at_2,        \
					      (void *)name##_at_3}};                                                \
	HOOK_INSTANCE(name, 0, parameters, __VA_ARGS__)                                                             \
	HOOK_INSTANCE(name, 1, parameters, __VA_ARGS__)                                                             \
	HOOK_INSTANCE(name, 2, parameters, __VA_ARGS__)                                                             \
	HOOK_INSTANCE(name, 3, parameters, __VA_ARGS__)

/* HOOKS(X): X(hook, exact or base name as a string, oldest version asked of cuGetProcAddress; 0: an exact name).
 * Of several rows for a base name the newest comes first. Old 32-bit forms (cuMemAlloc by dlsym, say) are not listed: they are gated like any other call.  */
#define HOOKS(X)                                                                                                    \
	X(cuInit, "cuInit", 0)                                                                                      \
	X(cuInit, "cuInit", 1)                                                                                      \
	X(cuGetProcAddress, "cuGetProcAddress", 0)                                                                  \
	X(cuGetProcAddress_v2, "cuGetProcAddress_v2", 0)                                                            \
	X(cuGetProcAddress_v2, "cuGetProcAddress", 12000)                                                           \
	X(cuGetProcAddress, "cuGetProcAddress", 1)                                                                  \
	X(cuMemAlloc, "cuMemAlloc_v2", 0)                                                                           \
	X(cuMemAlloc, "cuMemAlloc", 3020)                                                                           \
	X(cuMemAllocPitch, "cuMemAllocPitch_v2", 0)                                                                 \
	X(cuMemAllocPitch, "cuMemAllocPitch", 3020)                                                                 \
	X(cuMemFree, "cuMemFree_v2", 0)                                                                             \
	X(cuMemFree, "cuMemFree", 3020)                                                                             \
	X(cuMemFreeAsync, "cuMemFreeAsync", 0)                                                                      \
	X(cuMemFreeAsync, "cuMemFreeAsync_ptsz", 0)                                                                 \
	X(cuMemFreeAsync, "cuMemFreeAsync", 1)                                                                      \
	X(cuMemAllocManaged, "cuMemAllocManaged", 0)                                                                \
	X(cuMemAllocManaged, "cuMemAllocManaged", 1)                                                                \
	X(cuMemAllocAsync, "cuMemAllocAsync", 0)                                                                    \
	X(cuMemAllocAsync, "cuMemAllocAsync_ptsz", 0)                                                               \
	X(cuMemAllocAsync, "cuMemAllocAsync", 1)                                                                    \
	X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 0)                                                    \
	X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync_ptsz", 0)                                               \
	X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 1)                                                    \
	X(cuMemPoolCreate, "cuMemPoolCreate", 0)                                                                    \
	X(cuMemPoolCreate, "cuMemPoolCreate", 1)                                                                    \
	X(cuMemPoolDestroy, "cuMemPoolDestroy", 0)                                                                  \
	X(cuMemPoolDestroy, "cuMemPoolDestroy", 1)                                                                  \
	X(cuMemCreate, "cuMemCreate", 0)                                                                            \
	X(cuMemCreate, "cuMemCreate", 1)                                                                            \
	X(cuMemRelease, "cuMemRelease", 0)                                                                          \
	X(cuMemRelease, "cuMemRelease", 1)                                                                          \
	X(cuMemMap, "cuMemMap", 0)                                                                                  \
	X(cuMemMap, "cuMemMap", 1)                                                                                  \
	X(cuMemUnmap, "cuMemUnmap", 0)                                                                              \
	X(cuMemUnmap, "cuMemUnmap", 1)                                                                              \
	X(cuMemSetAccess, "cuMemSetAccess", 0)                                                                      \
	X(cuMemSetAccess, "cuMemSetAccess", 1)                                                                      \
	X(cuMemGetAccess, "cuMemGetAccess", 0)                                                                      \
	X(cuMemGetAccess, "cuMemGetAccess", 1)                                                                      \
	X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 0)                                            \
	X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 1)                                            \
	X(cuMemGetAllocationPropertiesFromHandle, "cuMemGetAllocationPropertiesFromHandle", 0)                      \
	X(cuMemGetAllocationPropertiesFromHandle, "cuMemGetAllocationPropertiesFromHandle", 1)                      \
	X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 0)                                          \
	X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 1)                                          \
	X(cuMulticastBindMem_v2, "cuMulticastBindMem_v2", 0)                                                        \
	X(cuMulticastBindMem_v2, "cuMulticastBindMem", 13010)                                                       \
	X(cuMulticastBindMem, "cuMulticastBindMem", 0)                                                              \
	X(cuMulticastBindMem, "cuMulticastBindMem", 1)                                                              \
	X(cuMulticastBindAddr_v2, "cuMulticastBindAddr_v2", 0)                                                      \
	X(cuMulticastBindAddr_v2, "cuMulticastBindAddr", 13010)                                                     \
	X(cuMulticastBindAddr, "cuMulticastBindAddr", 0)                                                            \
	X(cuMulticastBindAddr, "cuMulticastBindAddr", 1)                                                            \
	X(cuLogicalEndpointBindAddr, "cuLogicalEndpointBindAddr", 0)                                                \
	X(cuLogicalEndpointBindAddr, "cuLogicalEndpointBindAddr", 1)                                                \
	X(cuLogicalEndpointBindMem, "cuLogicalEndpointBindMem", 0)                                                  \
	X(cuLogicalEndpointBindMem, "cuLogicalEndpointBindMem", 1)                                                  \
	X(cuArrayCreate, "cuArrayCreate_v2", 0)                                                                     \
	X(cuArrayCreate, "cuArrayCreate", 3020)                                                                     \
	X(cuArray3DCreate, "cuArray3DCreate_v2", 0)                                                                 \
	X(cuArray3DCreate, "cuArray3DCreate", 3020)                                                                 \
	X(cuArrayDestroy, "cuArrayDestroy", 0)                                                                      \
	X(cuArrayDestroy, "cuArrayDestroy", 1)                                                                      \
	X(cuIpcGetMemHandle, "cuIpcGetMemHandle", 0)                                                                \
	X(cuIpcGetMemHandle, "cuIpcGetMemHandle", 1)                                                                \
	X(cuIpcOpenMemHandle, "cuIpcOpenMemHandle_v2", 0)                                                           \
	X(cuIpcOpenMemHandle, "cuIpcOpenMemHandle", 0)                                                              \
	X(cuIpcOpenMemHandle, "cuIpcOpenMemHandle", 1)                                                              \
	X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 0)                                                            \
	X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 1)                                                            \
	X(cuMemGetHandleForAddressRange, "cuMemGetHandleForAddressRange", 0)                                        \
	X(cuMemGetHandleForAddressRange, "cuMemGetHandleForAddressRange", 1)                                        \
	X(cuMemGetAddressRange, "cuMemGetAddressRange_v2", 0)                                                       \
	X(cuMemGetAddressRange, "cuMemGetAddressRange", 3020)                                                       \
	X(cuPointerGetAttribute, "cuPointerGetAttribute", 0)                                                        \
	X(cuPointerGetAttribute, "cuPointerGetAttribute", 1)                                                        \
	X(cuPointerGetAttributes, "cuPointerGetAttributes", 0)                                                      \
	X(cuPointerGetAttributes, "cuPointerGetAttributes", 1)                                                      \
	X(cuPointerSetAttribute, "cuPointerSetAttribute", 0)                                                        \
	X(cuPointerSetAttribute, "cuPointerSetAttribute", 1)                                                        \
	X(cuStreamCreate, "cuStreamCreate", 0)                                                                      \
	X(cuStreamCreate, "cuStreamCreate", 1)                                                                      \
	X(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", 0)                                              \
	X(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", 1)                                              \
	X(cuGreenCtxStreamCreate, "cuGreenCtxStreamCreate", 0)                                                      \
	X(cuGreenCtxStreamCreate, "cuGreenCtxStreamCreate", 1)                                                      \
	X(cuStreamDestroy, "cuStreamDestroy_v2", 0)                                                                 \
	X(cuStreamDestroy, "cuStreamDestroy", 0)                                                                    \
	X(cuStreamDestroy, "cuStreamDestroy", 1)                                                                    \
	X(cuStreamBeginCapture, "cuStreamBeginCapture", 0)                                                          \
	X(cuStreamBeginCapture, "cuStreamBeginCapture_ptsz", 0)                                                     \
	X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", 0)                                                       \
	X(cuStreamBeginCapture, "cuStreamBeginCapture_v2_ptsz", 0)                                                  \
	X(cuStreamBeginCapture, "cuStreamBeginCapture", 1)                                                          \
	X(cuStreamBeginCaptureToGraph, "cuStreamBeginCaptureToGraph", 0)                                            \
	X(cuStreamBeginCaptureToGraph, "cuStreamBeginCaptureToGraph_ptsz", 0)                                       \
	X(cuStreamBeginCaptureToGraph, "cuStreamBeginCaptureToGraph", 1)                                            \
	X(cuStreamBeginCaptureToCig, "cuStreamBeginCaptureToCig", 0)                                                \
	X(cuStreamBeginCaptureToCig, "cuStreamBeginCaptureToCig_ptsz", 0)                                           \
	X(cuStreamBeginCaptureToCig, "cuStreamBeginCaptureToCig", 1)                                                \
	X(cuStreamBeginRecaptureToGraph, "cuStreamBeginRecaptureToGraph", 0)                                        \
	X(cuStreamBeginRecaptureToGraph, "cuStreamBeginRecaptureToGraph_ptsz", 0)                                   \
	X(cuStreamBeginRecaptureToGraph, "cuStreamBeginRecaptureToGraph", 1)                                        \
	X(cuStreamEndCaptureToCig, "cuStreamEndCaptureToCig", 0)                                                    \
	X(cuStreamEndCaptureToCig, "cuStreamEndCaptureToCig_ptsz", 0)                                               \
	X(cuStreamEndCaptureToCig, "cuStreamEndCaptureToCig", 1)                                                    \
	X(cuStreamEndCapture, "cuStreamEndCapture", 0)                                                              \
	X(cuStreamEndCapture, "cuStreamEndCapture_ptsz", 0)                                                         \
	X(cuStreamEndCapture, "cuStreamEndCapture", 1)                                                              \
	X(cuCtxCreate_v2, "cuCtxCreate_v2", 0)                                                                      \
	X(cuCtxCreate_v3, "cuCtxCreate_v3", 0)                                                                      \
	X(cuCtxCreate_v4, "cuCtxCreate_v4", 0)                                                                      \
	X(cuCtxCreate_v4, "cuCtxCreate", 12050)                                                                     \
	X(cuCtxCreate_v3, "cuCtxCreate", 11040)                                                                     \
	X(cuCtxCreate_v2, "cuCtxCreate", 1)                                                                         \
	X(cuCtxCreate_v2, "cuCtxCreate", 0)                                                                         \
	X(cuCtxDestroy, "cuCtxDestroy_v2", 0)                                                                       \
	X(cuCtxDestroy, "cuCtxDestroy", 0)                                                                          \
	X(cuCtxDestroy, "cuCtxDestroy", 1)                                                                          \
	X(cuCtxAttach, "cuCtxAttach", 0)                                                                            \
	X(cuCtxAttach, "cuCtxAttach", 1)                                                                            \
	X(cuCtxDetach, "cuCtxDetach", 0)                                                                            \
	X(cuCtxDetach, "cuCtxDetach", 1)                                                                            \
	X(cuGreenCtxCreate, "cuGreenCtxCreate", 0)                                                                  \
	X(cuGreenCtxCreate, "cuGreenCtxCreate", 1)                                                                  \
	X(cuGreenCtxDestroy, "cuGreenCtxDestroy", 0)                                                                \
	X(cuGreenCtxDestroy, "cuGreenCtxDestroy", 1)                                                                \
	X(cuCtxFromGreenCtx, "cuCtxFromGreenCtx", 0)                                                                \
	X(cuCtxFromGreenCtx, "cuCtxFromGreenCtx", 1)                                                                \
	X(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset_v2", 0)                                                 \
	X(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 0)                                                    \
	X(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 1)                                                    \
	X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 0)                                                  \
	X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 1)                                                  \
	X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", 0)                                             \
	X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 0)                                                \
	X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 1)                                                \
	X(cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", 0)                                                        \
	X(cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", 1)                                                        \
	X(cuCtxDisablePeerAccess, "cuCtxDisablePeerAccess", 0)                                                      \
	X(cuCtxDisablePeerAccess, "cuCtxDisablePeerAccess", 1)

#endif
