/* Four threads use everything at once on one context while a fifth checkpoints the process again and again. Built with
 * the simulator's sources and a sanitizer (test_sources.py).  */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "driver/sim_cuda.h"

#define THREADS 4
#define ROUNDS 40
#define CHECKPOINTS 20
#define BLOCK (2ull << 20)

CUresult cuInit(unsigned), cuDevicePrimaryCtxRetain(CUcontext *, int), cuDevicePrimaryCtxRelease_v2(int);
CUresult cuCtxSetCurrent(CUcontext), cuCtxSynchronize(void), cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t), cuMemFree_v2(CUdeviceptr), cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
CUresult cuMemsetD32Async(CUdeviceptr, unsigned, size_t, CUstream), cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
CUresult cuMemFreeAsync(CUdeviceptr, CUstream), cuStreamCreate(CUstream *, unsigned), cuStreamDestroy_v2(CUstream);
CUresult cuStreamSynchronize(CUstream), cuEventCreate(CUevent *, unsigned), cuEventRecord(CUevent, CUstream);
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned), cuEventDestroy_v2(CUevent);
CUresult cuLaunchHostFunc(CUstream, CUhostFn, void *), cuStreamBeginCapture_v2(CUstream, int);
CUresult cuStreamEndCapture(CUstream, CUgraph *), cuGraphDestroy(CUgraph);
CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
CUresult cuMemCreate(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t), cuMemUnmap(CUdeviceptr, size_t);
CUresult cuMemRelease(CUmemGenericAllocationHandle), cuMemAddressFree(CUdeviceptr, size_t);
CUresult cuCheckpointProcessLock(int, const CUcheckpointLockArgs *), cuCheckpointProcessCheckpoint(int, const void *);
CUresult cuCheckpointProcessRestore(int, const CUcheckpointRestoreArgs *), cuCheckpointProcessUnlock(int, const void *);

static CUcontext context;

static void check(CUresult result, int line)
{
	if (result == CUDA_SUCCESS)
		return;
	fprintf(stderr, "line %d: error %d\n", line, result);
	exit(1);
}

#define OK(call) check(call, __LINE__)

static void count(void *counter)
{
	++*(int *)counter;
}

static unsigned word_at(CUdeviceptr address)
{
	unsigned word;

	OK(cuMemcpyDtoH_v2(&word, address, sizeof(word)));
	return word;
}

static void mapping(CUdeviceptr *address, CUmemGenericAllocationHandle *handle)
{
	const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
						.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

	OK(cuMemAddressReserve(address, BLOCK, 0, 0, 0));
	OK(cuMemCreate(handle, BLOCK, &properties, 0));
	OK(cuMemMap(*address, BLOCK, 0, *handle, 0));
	OK(cuMemSetAccess(*address, BLOCK, &access, 1));
}

static void stream_round(CUstream first, CUstream second, size_t size)
{
	CUdeviceptr plain, pooled;
	CUevent event;
	int called = 0;

	OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	OK(cuMemAlloc_v2(&plain, size));
	OK(cuMemAllocAsync(&pooled, 3 << 20, first));
	OK(cuMemsetD32Async(plain, 5, 1000, first));
	OK(cuMemsetD32Async(pooled, 7, 1000, first));
	OK(cuEventRecord(event, first));
	OK(cuStreamWaitEvent(second, event, 0));
	OK(cuMemsetD32Async(plain, 8, 4, second));
	OK(cuLaunchHostFunc(second, count, &called));
	OK(cuStreamSynchronize(second));
	check(called != 1 || word_at(plain) != 8, __LINE__);
	OK(cuMemFreeAsync(pooled, first));
	OK(cuMemFree_v2(plain));
	OK(cuEventDestroy_v2(event));
}

static void *work(void *number)
{
	size_t seed = (size_t)(uintptr_t)number;

	OK(cuCtxSetCurrent(context));
	for (int round = 0; round < ROUNDS; round++) {
		CUmemGenericAllocationHandle handle;
		CUstream first, second;
		CUdeviceptr address;
		CUgraph graph;

		OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
		OK(cuStreamCreate(&second, seed & 1));
		mapping(&address, &handle);
		stream_round(first, second, 4096 + seed * 700000);
		OK(cuStreamBeginCapture_v2(first, CU_STREAM_CAPTURE_MODE_RELAXED));
		OK(cuMemsetD32Async(address, 9, 4, first));
		OK(cuStreamEndCapture(first, &graph));
		OK(cuGraphDestroy(graph));
		OK(cuMemUnmap(address, BLOCK));
		OK(cuMemRelease(handle));
		OK(cuMemAddressFree(address, BLOCK));
		OK(cuStreamDestroy_v2(first));
		OK(cuStreamDestroy_v2(second));
	}
	return NULL;
}

static void *checkpoint(void *unused)
{
	const CUcheckpointLockArgs arguments = {.timeoutMs = 2000};
	int me = getpid();

	for (int i = 0; i < CHECKPOINTS; i++) {
		if (cuCheckpointProcessLock(me, &arguments) != CUDA_SUCCESS)
			continue;
		OK(cuCheckpointProcessCheckpoint(me, NULL));
		OK(cuCheckpointProcessRestore(me, NULL));
		OK(cuCheckpointProcessUnlock(me, NULL));
	}
	return unused;
}

int main(void)
{
	pthread_t threads[THREADS + 1];
	size_t before, after, total;

	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuMemGetInfo_v2(&before, &total));
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, work, (void *)i);
	pthread_create(&threads[THREADS], NULL, checkpoint, NULL);
	for (int i = 0; i <= THREADS; i++)
		pthread_join(threads[i], NULL);
	OK(cuCtxSynchronize());
	OK(cuMemGetInfo_v2(&after, &total));
	check(before != after, __LINE__);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	return 0;
}
