/* Pitched allocations, and memory that two devices share by peer access, move like the rest and are as reachable.  */
#include "harness.h"

#define BYTES MiB(4)

static CUcontext contexts[2];

static void park(void)
{
	controller_park();
}

static void resume(void)
{
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_OK);
}

static void pitched(void)
{
	size_t width = 3001, height = 1500, pitch, size;
	CUdeviceptr at, base;

	CUDA(MemAllocPitch(&at, &pitch, width, height, 4));
	CHECK(pitch >= width && pitch % 512 == 0);
	CUDA(MemGetAddressRange(&base, &size, at));
	CHECK(base == at && size >= pitch * height);
	CHECK_EQUAL(launch_pattern(NULL, at, pitch * height, 31), CUDA_SUCCESS);
	CUDA(CtxSynchronize());
	park();
	CHECK(page_read().gpus[0].parked_bytes >= pitch * height);
	resume();
	CHECK(holds_pattern(at, pitch * height, 31, 0));
	CUDA(MemFree(at));
}

/* Copy from the other device's memory directly, which only peer access allows.  */
static void copy_over(CUdeviceptr to, CUdeviceptr from, uint32_t seed)
{
	CUDA(CtxSetCurrent(contexts[1]));
	CUDA(MemcpyDtoD(to, from, BYTES));
	CHECK(holds_pattern(to, BYTES, seed, 0));
	CUDA(MemsetD32(to, 0, BYTES / 4));
	CUDA(CtxSynchronize());
	CUDA(CtxSetCurrent(contexts[0]));
}

/* Whether the other device reaches the memory directly.  */
static bool reaches(CUdeviceptr to, CUdeviceptr from)
{
	CUresult result;

	CUDA(CtxSetCurrent(contexts[1]));
	result = cu.MemcpyDtoD(to, from, BYTES);
	CUDA(CtxSynchronize());
	CUDA(CtxSetCurrent(contexts[0]));
	return result == CUDA_SUCCESS;
}

static void allow(bool allowed)
{
	CUDA(CtxSetCurrent(contexts[1]));
	if (allowed)
		CUDA(CtxEnablePeerAccess(contexts[0], 0));
	else
		CUDA(CtxDisablePeerAccess(contexts[0]));
	CUDA(CtxSetCurrent(contexts[0]));
}

/* What was allowed is taken back: for memory there is, for memory to come, for parked memory, and with the context.  */
static void access_ends(CUdeviceptr there, CUdeviceptr before)
{
	CUdeviceptr after;

	allow(false);
	CHECK(!reaches(there, before));
	CUDA(MemAlloc(&after, BYTES));
	CHECK(!reaches(there, after));
	allow(true);
	CHECK(reaches(there, before) && reaches(there, after));
	park();
	allow(false);
	CHECK_EQUAL(page_read().want, 0);
	resume();
	CHECK(!reaches(there, before) && !reaches(there, after));
	allow(true);
	park();
	resume();
	CHECK(reaches(there, before) && reaches(there, after));

	/* The primary context of the device that may is ended; the next one may not.  */
	CUDA(DevicePrimaryCtxReset(1));
	CUDA(DevicePrimaryCtxRetain(&contexts[1], 1));
	CUDA(CtxSetCurrent(contexts[1]));
	CUDA(MemAlloc(&there, BYTES));
	CUDA(CtxSetCurrent(contexts[0]));
	CHECK(!reaches(there, before) && !reaches(there, after));
	park();
	resume();
	CHECK(!reaches(there, before));
	allow(true);
	CHECK(reaches(there, before));
	CHECK(holds_pattern(before, BYTES, 41, 0));
}

int main(int argc, char **argv)
{
	CUdeviceptr before, after, there;

	setenv("AFFINODE_SIM_GPUS", "2", 1);
	test_begin(argc, argv, 30);
	cuda_start();
	controller_accept();
	pitched();

	contexts[0] = cuda_context;
	CUDA(DevicePrimaryCtxRetain(&contexts[1], 1));
	CUDA(MemAlloc(&before, BYTES));
	CHECK_EQUAL(launch_pattern(NULL, before, BYTES, 41), CUDA_SUCCESS);
	CUDA(CtxSynchronize());
	CUDA(CtxSetCurrent(contexts[1]));
	CUDA(MemAlloc(&there, BYTES));
	CUDA(CtxEnablePeerAccess(contexts[0], 0)); /* device 1 may reach what device 0 has, had and will have */
	copy_over(there, before, 41);
	CUDA(MemAlloc(&after, BYTES));
	CHECK_EQUAL(launch_pattern(NULL, after, BYTES, 42), CUDA_SUCCESS);
	CUDA(CtxSynchronize());
	copy_over(there, after, 42);
	for (int i = 0; i < 3; i++) {
		park();
		CHECK_EQUAL(page_read().gpus[0].parked_bytes, 2 * BYTES);
		CHECK_EQUAL(page_read().gpus[1].parked_bytes, BYTES);
		resume();
		copy_over(there, before, 41);
		copy_over(there, after, 42);
	}
	access_ends(there, before);
	return 0;
}
