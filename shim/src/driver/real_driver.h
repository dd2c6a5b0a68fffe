/* The real driver's entry points that the shim itself calls; resolved once, on the application's thread.  */
#pragma once

#include <stdbool.h>

#include "driver/cuda_types.h"

/* X(name, oldest CUDA version that has the signature below, parameters); the later ones may be missing. */
#define DRIVER_FUNCTIONS(X)                                                                                         \
	X(cuCtxGetCurrent, 4000, (CUcontext *))                                                                     \
	X(cuCtxSetCurrent, 4000, (CUcontext))                                                                       \
	X(cuCtxPushCurrent, 4000, (CUcontext))                                                                      \
	X(cuCtxPopCurrent, 4000, (CUcontext *))                                                                     \
	X(cuCtxGetDevice, 2000, (CUdevice *))                                                                       \
	X(cuCtxSynchronize, 2000, (void))                                                                           \
	X(cuDeviceGetCount, 2000, (int *))                                                                          \
	X(cuDeviceGetAttribute, 2000, (int *, int, CUdevice))                                                       \
	X(cuDeviceGetName, 2000, (char *, int, CUdevice))                                                           \
	X(cuDeviceGetPCIBusId, 4010, (char *, int, CUdevice))                                                       \
	X(cuDeviceGetUuid, 11040, (void *, CUdevice))                                                               \
	X(cuDevicePrimaryCtxGetState, 7000, (CUdevice, unsigned int *, int *))                                      \
	X(cuMemAlloc, 3020, (CUdeviceptr *, size_t))                                                                \
	X(cuMemFree, 3020, (CUdeviceptr))                                                                           \
	X(cuMemGetInfo, 3020, (size_t *, size_t *))                                                                 \
	X(cuMemAddressReserve, 10020, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))             \
	X(cuMemAddressFree, 10020, (CUdeviceptr, size_t))                                                           \
	X(cuMemCreate, 10020,                                                                                       \
	  (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))                \
	X(cuMemRelease, 10020, (CUmemGenericAllocationHandle))                                                      \
	X(cuMemMap, 10020, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))         \
	X(cuMemUnmap, 10020, (CUdeviceptr, size_t))                                                                 \
	X(cuMemSetAccess, 10020, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))                            \
	X(cuMemGetAllocationGranularity, 10020, (size_t *, const CUmemAllocationProp *, int))                       \
	X(cuMemcpyDtoHAsync, 3020, (void *, CUdeviceptr, size_t, CUstream))                                         \
	X(cuMemcpyHtoDAsync, 3020, (CUdeviceptr, const void *, size_t, CUstream))                                   \
	X(cuMemsetD32Async, 3020, (CUdeviceptr, unsigned int, size_t, CUstream))                                    \
	X(cuMemHostAlloc, 2020, (void **, size_t, unsigned int))                                                    \
	X(cuMemFreeHost, 2000, (void *))                                                                            \
	X(cuMemHostRegister, 6050, (void *, size_t, unsigned int))                                                  \
	X(cuMemHostUnregister, 4000, (void *))                                                                      \
	X(cuEventCreate, 2000, (CUevent *, unsigned int))                                                           \
	X(cuEventRecord, 2000, (CUevent, CUstream))                                                                 \
	X(cuEventSynchronize, 2000, (CUevent))                                                                      \
	X(cuModuleLoadData, 2000, (CUmodule *, const void *))                                                       \
	X(cuModuleGetFunction, 2000, (CUfunction *, CUmodule, const char *))                                        \
	X(cuModuleUnload, 2000, (CUmodule))                                                                         \
	X(cuLaunchKernel, 4000,                                                                                     \
	  (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,          \
	   unsigned int, CUstream, void **, void **))                                                               \
	X(cuPointerGetAttribute, 4000, (void *, int, CUdeviceptr))                                                  \
	X(cuStreamCreate, 2000, (CUstream *, unsigned int))                                                         \
	X(cuStreamDestroy, 4000, (CUstream))                                                                        \
	X(cuStreamQuery, 2000, (CUstream))                                                                          \
	X(cuStreamSynchronize, 2000, (CUstream))                                                                    \
	X(cuThreadExchangeStreamCaptureMode, 10010, (int *))

/* X(field, name, version, parameters): where one is missing its field is NULL, and what needs it is left out.  */
#define DRIVER_OPTIONAL(X)                                                                                          \
	X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 10020,                                      \
	  (void *, CUmemGenericAllocationHandle, int, unsigned long long))                                          \
	X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020,                                  \
	  (CUmemGenericAllocationHandle *, void *, int))                                                            \
	X(cuDeviceTotalMem, "cuDeviceTotalMem", 3020, (size_t *, CUdevice))                                         \
	X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, (CUcontext *, CUdevice))                      \
	X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 11000, (CUdevice))                                \
	X(cuCtxFromGreenCtx, "cuCtxFromGreenCtx", 12040, (CUcontext *, const void *))                               \
	X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 11020, (CUmemoryPool *, CUdevice))                \
	X(cuMemPoolGetAttribute, "cuMemPoolGetAttribute", 11020, (CUmemoryPool, int, void *))                       \
	X(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, (CUmemoryPool, size_t))                                        \
	X(cuDeviceGetGraphMemAttribute, "cuDeviceGetGraphMemAttribute", 11040, (CUdevice, int, void *))             \
	X(cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim", 11040, (CUdevice))                                          \
	X(cuMemPrefetchAsync, "cuMemPrefetchAsync", 8000, (CUdeviceptr, size_t, CUdevice, CUstream))                \
	X(cuMemPrefetchAsync_v2, "cuMemPrefetchAsync", 12020,                                                       \
	  (CUdeviceptr, size_t, CUmemLocation, unsigned int, CUstream))                                              \
	X(cuDriverGetVersion, "cuDriverGetVersion", 2020, (int *))                                                  \
	X(cuGetErrorName, "cuGetErrorName", 6000, (CUresult, const char **))                                        \
	X(cuGetErrorString, "cuGetErrorString", 6000, (CUresult, const char **))                                    \
	X(cuPointerGetAttributes, "cuPointerGetAttributes", 7000, (unsigned int, int *, void **, CUdeviceptr))      \
	X(cuCheckpointProcessLock, "cuCheckpointProcessLock", 12080, (int, struct checkpoint_lock_arguments *))     \
	X(cuCheckpointProcessCheckpoint, "cuCheckpointProcessCheckpoint", 12080, (int, void *))                     \
	X(cuCheckpointProcessRestore, "cuCheckpointProcessRestore", 12080, (int, void *))                           \
	X(cuCheckpointProcessUnlock, "cuCheckpointProcessUnlock", 12080, (int, void *))                             \
	X(cuCheckpointProcessGetState, "cuCheckpointProcessGetState", 12080, (int, int *))

/* As cuda.h of CUDA 12.8 declares it; the checkpoint's other structs are all reserved there and may be NULL.  */
struct checkpoint_lock_arguments {
	unsigned int timeout_ms, reserved0;
	uint64_t reserved1[7];
};

#define DRIVER_POINTER(name, version, parameters) CUresult (*name) parameters;
#define DRIVER_OPTIONAL_POINTER(field, name, version, parameters) CUresult (*field) parameters;
struct driver {
	DRIVER_FUNCTIONS(DRIVER_POINTER)
	DRIVER_OPTIONAL(DRIVER_OPTIONAL_POINTER)
};
#undef DRIVER_POINTER
#undef DRIVER_OPTIONAL_POINTER

extern struct driver driver;

/* Another library's function was found where that entry point of the driver's was asked for: it may limit what is allocated.  */
void driver_note_company(const char *name);
bool driver_has_company(void);

/* Whether cuMemAlloc is another library's and cuMemCreate, by which blocks get their memory, is not: then cuMemAlloc must be
 * called, or the library's limit would not hold.  */
bool driver_allocates_by_another(void);

/* Remember how the application reaches the driver: the real cuGetProcAddress_v2, or a symbol finder for a handle.  */
void driver_note_get_proc_address(void *real);
void driver_note_handle(void *handle);

/* Fill `driver`: 0, or -ENOSYS if the driver is too old to move memory. Calls the dynamic linker: never on our own threads.  */
int driver_resolve(void);
