/* Pitched allocations, and memory that two devices share by peer access, move like the rest and are as reachable.  */
#include "harness.h"

#define BYTES MiB(4)

static CUcontext contexts[2];

static void park(void)
{
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_PARK), AFFINODE_OK);
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
	return 0;
}
