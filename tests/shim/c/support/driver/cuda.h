/* The driver's functions that the tests call, found as a program finds them: by dlsym in the driver's library. Where the
 * shim is linked into the test (sanitizers) its wrapper is asked for instead, as the preloaded dlsym does.  */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "driver/cuda_types.h"

typedef struct CUgraphExec_st *CUgraphExec;
typedef struct {
	int allocType, handleTypes;
	CUmemLocation location;
	void *win32SecurityAttributes;
	size_t maxSize;
	unsigned short usage;
	unsigned char reserved[54];
} CUmemPoolProps;

#define CUDA_FUNCTIONS(X)                                                                                            \
	X(Init, "cuInit", (unsigned int))                                                                            \
	X(DeviceGet, "cuDeviceGet", (CUdevice *, int))                                                               \
	X(DeviceGetCount, "cuDeviceGetCount", (int *))                                                               \
	X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice))                               \
	X(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice))                                       \
	X(DevicePrimaryCtxReset, "cuDevicePrimaryCtxReset_v2", (CUdevice))                                           \
	X(CtxCreate, "cuCtxCreate_v2", (CUcontext *, unsigned int, CUdevice))                                        \
	X(CtxDestroy, "cuCtxDestroy_v2", (CUcontext))                                                                \
	X(CtxSetCurrent, "cuCtxSetCurrent", (CUcontext))                                                             \
	X(CtxGetCurrent, "cuCtxGetCurrent", (CUcontext *))                                                           \
	X(CtxSynchronize, "cuCtxSynchronize", (void))                                                                \
	X(CtxEnablePeerAccess, "cuCtxEnablePeerAccess", (CUcontext, unsigned int))                                   \
	X(CtxDisablePeerAccess, "cuCtxDisablePeerAccess", (CUcontext))                                               \
	X(MemAlloc, "cuMemAlloc_v2", (CUdeviceptr *, size_t))                                                        \
	X(MemAllocPitch, "cuMemAllocPitch_v2", (CUdeviceptr *, size_t *, size_t, size_t, unsigned int))              \
	X(MemFree, "cuMemFree_v2", (CUdeviceptr))                                                                    \
	X(MemGetInfo, "cuMemGetInfo_v2", (size_t *, size_t *))                                                       \
	X(MemGetAddressRange, "cuMemGetAddressRange_v2", (CUdeviceptr *, size_t *, CUdeviceptr))                     \
	X(MemAllocAsync, "cuMemAllocAsync", (CUdeviceptr *, size_t, CUstream))                                       \
	X(MemFreeAsync, "cuMemFreeAsync", (CUdeviceptr, CUstream))                                                   \
	X(MemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", (CUdeviceptr *, size_t, CUmemoryPool, CUstream))         \
	X(MemPoolCreate, "cuMemPoolCreate", (CUmemoryPool *, const CUmemPoolProps *))                                \
	X(MemPoolDestroy, "cuMemPoolDestroy", (CUmemoryPool))                                                        \
	X(MemPoolSetAttribute, "cuMemPoolSetAttribute", (CUmemoryPool, int, void *))                                 \
	X(DeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", (CUmemoryPool *, CUdevice))                          \
	X(MemAllocManaged, "cuMemAllocManaged", (CUdeviceptr *, size_t, unsigned int))                               \
	X(MemPrefetchAsync, "cuMemPrefetchAsync", (CUdeviceptr, size_t, CUdevice, CUstream))                         \
	X(MemHostAlloc, "cuMemHostAlloc", (void **, size_t, unsigned int))                                           \
	X(MemFreeHost, "cuMemFreeHost", (void *))                                                                    \
	X(MemcpyHtoD, "cuMemcpyHtoD_v2", (CUdeviceptr, const void *, size_t))                                        \
	X(MemcpyDtoH, "cuMemcpyDtoH_v2", (void *, CUdeviceptr, size_t))                                              \
	X(MemcpyDtoD, "cuMemcpyDtoD_v2", (CUdeviceptr, CUdeviceptr, size_t))                                         \
	X(MemsetD32, "cuMemsetD32_v2", (CUdeviceptr, unsigned int, size_t))                                          \
	X(MemsetD32Async, "cuMemsetD32Async", (CUdeviceptr, unsigned int, size_t, CUstream))                         \
	X(PointerGetAttribute, "cuPointerGetAttribute", (void *, int, CUdeviceptr))                                  \
	X(PointerSetAttribute, "cuPointerSetAttribute", (const void *, int, CUdeviceptr))                            \
	X(PointerGetAttributes, "cuPointerGetAttributes", (unsigned int, int *, void **, CUdeviceptr))               \
	X(IpcGetMemHandle, "cuIpcGetMemHandle", (CUipcMemHandle *, CUdeviceptr))                                     \
	X(IpcOpenMemHandle, "cuIpcOpenMemHandle_v2", (CUdeviceptr *, CUipcMemHandle, unsigned int))                  \
	X(IpcCloseMemHandle, "cuIpcCloseMemHandle", (CUdeviceptr))                                                   \
	X(MemAddressReserve, "cuMemAddressReserve", (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
	X(MemAddressFree, "cuMemAddressFree", (CUdeviceptr, size_t))                                                 \
	X(MemCreate, "cuMemCreate",                                                                                  \
	  (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))                 \
	X(MemRelease, "cuMemRelease", (CUmemGenericAllocationHandle))                                                \
	X(MemMap, "cuMemMap", (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))       \
	X(MemUnmap, "cuMemUnmap", (CUdeviceptr, size_t))                                                             \
	X(MemSetAccess, "cuMemSetAccess", (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))                    \
	X(MemGetAccess, "cuMemGetAccess", (unsigned long long *, const CUmemLocation *, CUdeviceptr))                \
	X(MemRetainAllocationHandle, "cuMemRetainAllocationHandle", (CUmemGenericAllocationHandle *, void *))        \
	X(ModuleLoadData, "cuModuleLoadData", (CUmodule *, const void *))                                            \
	X(ModuleUnload, "cuModuleUnload", (CUmodule))                                                                \
	X(ModuleGetFunction, "cuModuleGetFunction", (CUfunction *, CUmodule, const char *))                          \
	X(LaunchKernel, "cuLaunchKernel",                                                                            \
	  (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,           \
	   unsigned int, CUstream, void **, void **))                                                                \
	X(LaunchHostFunc, "cuLaunchHostFunc", (CUstream, void (*)(void *), void *))                                  \
	X(StreamCreate, "cuStreamCreate", (CUstream *, unsigned int))                                                \
	X(StreamDestroy, "cuStreamDestroy_v2", (CUstream))                                                           \
	X(StreamSynchronize, "cuStreamSynchronize", (CUstream))                                                      \
	X(StreamQuery, "cuStreamQuery", (CUstream))                                                                  \
	X(StreamBeginCapture, "cuStreamBeginCapture_v2", (CUstream, int))                                            \
	X(StreamEndCapture, "cuStreamEndCapture", (CUstream, CUgraph *))                                             \
	X(StreamIsCapturing, "cuStreamIsCapturing", (CUstream, int *))                                               \
	X(GraphInstantiate, "cuGraphInstantiateWithFlags", (CUgraphExec *, CUgraph, unsigned long long))             \
	X(GraphLaunch, "cuGraphLaunch", (CUgraphExec, CUstream))                                                     \
	X(GraphDestroy, "cuGraphDestroy", (CUgraph))                                                                 \
	X(EventCreate, "cuEventCreate", (CUevent *, unsigned int))                                                   \
	X(EventRecord, "cuEventRecord", (CUevent, CUstream))                                                         \
	X(EventQuery, "cuEventQuery", (CUevent))                                                                     \
	X(EventSynchronize, "cuEventSynchronize", (CUevent))                                                         \
	X(EventDestroy, "cuEventDestroy_v2", (CUevent))

#define CUDA_POINTER(name, symbol, parameters) CUresult(*name) parameters;
struct cuda {
	CUDA_FUNCTIONS(CUDA_POINTER)
};
#undef CUDA_POINTER

extern struct cuda cu;

/* Find all of them; cuda_symbol is one, NULL if the driver has none.  */
void cuda_load(void);
void *cuda_symbol(const char *name);
/* What the driver says is free of the current context's GPU; asking passes the gate.  */
size_t cuda_free_bytes(void);
/* Allocate all of that but for `spare`.  */
CUdeviceptr cuda_fill(size_t spare);
/* The same past the shim, as another process would; and give it back.  */
CUdeviceptr cuda_take(size_t spare);
void cuda_give(CUdeviceptr taken);
void *nvml_symbol(const char *name);
/* The driver's own function, past the shim, as a library has it that came by a private table.  */
void *cuda_hidden(const char *name);
/* The wrapper of a driver function made for the test (calling_driver.c): it calls `body(data)` and says success.
 * "cuLaunch" passes by an INT thunk, "cuTestCall", which no table knows, by a WIDE one.  */
typedef CUresult (*calling_fn)(void (*body)(void *), void *data);
calling_fn cuda_calling(const char *name);

/* Have the shim reach the driver through decompressing_driver.c; one of that library's functions. Before anything else.  */
void *cuda_in_front(const char *name);

/* cuInit, the first device's primary context made current, the kernels loaded.  */
void cuda_start(void);
/* Begin a test that is its own controller and has a GPU: test_begin, cuda_start, controller_accept.  */
void cuda_begin(int argc, char **argv, unsigned deadline_s);
extern CUcontext cuda_context;

/* Memory of the first GPU for cuMemCreate, its access rights for cuMemSetAccess; both: mapped where it can be used.  */
extern const CUmemAllocationProp cuda_prop;
extern const CUmemAccessDesc cuda_access;
CUdeviceptr cuda_map(CUmemGenericAllocationHandle handle, size_t bytes);

/* Kernels of the simulated GPU, and a module that has them.  */
CUresult load_module(CUmodule *module);
CUresult launch_pattern(CUstream stream, CUdeviceptr to, size_t bytes, uint32_t seed);
CUresult launch_add(CUstream stream, CUdeviceptr to, size_t bytes, uint32_t addend);
CUresult launch_wait_flag(CUstream stream, uint32_t *flag); /* memory of cuMemHostAlloc */
CUresult launch_spin(CUstream stream, uint64_t ns);

/* Word i of what launch_pattern writes.  */
static inline uint32_t pattern_word(uint32_t seed, size_t i)
{
	return (seed * 2654435761u + (uint32_t)i * 2246822519u) ^ (uint32_t)(i >> 15);
}

/* Write it, and wait; a block with it.  */
void fill_pattern(CUdeviceptr at, size_t bytes, uint32_t seed);
CUdeviceptr cuda_block(size_t bytes, uint32_t seed);

/* Whether [at, at + bytes) holds the pattern of `seed`, plus `added` to each word.  */
bool holds_pattern(CUdeviceptr at, size_t bytes, uint32_t seed, uint32_t added);

/* A thread that reads the first word there; `word_read`: what the call returned, -1 until then.  */
void read_a_word(pthread_t *thread, CUdeviceptr at);
extern _Atomic int word_read;

/* For the test in C++, which does not read this header: a block with a pattern, and whether it still has it.  */
int cuda_block_made(void);
int cuda_block_right(void);

#define MiB(n) ((size_t)(n) << 20)
