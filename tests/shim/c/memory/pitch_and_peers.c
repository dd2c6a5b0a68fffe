/* Pitched allocations, and memory that two devices share by peer access, move like the rest and are as reachable.  */
#include "harness.h"

#define BYTES MiB(4)

static CUcontext contexts[2];

static void pitched(void)
{
	size_t width = 3001, height = 1500, pitch, size;
	CUdeviceptr at, base;

	CUDA(MemAllocPitch(&at, &pitch, width, height, 4));
	CHECK(pitch >= width && pitch % 512 == 0);
	CUDA(MemGetAddressRange(&base, &size, at));
	CHECK(base == at && size >= pitch * height);
	fill_pattern(at, pitch * height, 31);
	controller_park();
	CHECK(page_read().gpus[0].parked_bytes >= pitch * height);
	CHECK_RESUMES();
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
	controller_park();
	allow(false);
	CHECK_EQUAL(page_read().want, 0);
	CHECK_RESUMES();
	CHECK(!reaches(there, before) && !reaches(there, after));
	allow(true);
	controller_park();
	CHECK_RESUMES();
	CHECK(reaches(there, before) && reaches(there, after));

	/* The primary context of the device that may is ended; the next one may not.  */
	CUDA(DevicePrimaryCtxReset(1));
	CUDA(DevicePrimaryCtxRetain(&contexts[1], 1));
	CUDA(CtxSetCurrent(contexts[1]));
	CUDA(MemAlloc(&there, BYTES));
	CUDA(CtxSetCurrent(contexts[0]));
	CHECK(!reaches(there, before) && !reaches(there, after));
	controller_park();
	CHECK_RESUMES();
	CHECK(!reaches(there, before));
	allow(true);
	CHECK(reaches(there, before));
	CHECK(holds_pattern(before, BYTES, 41, 0));
}

int main(int argc, char **argv)
{
	CUdeviceptr before, after, there;

	setenv("AFFINODE_SIM_GPUS", "2", 1);
	cuda_begin(argc, argv, 30);
	pitched();

	contexts[0] = cuda_context;
	CUDA(DevicePrimaryCtxRetain(&contexts[1], 1));
	before = cuda_block(BYTES, 41);
	CUDA(CtxSetCurrent(contexts[1]));
	CUDA(MemAlloc(&there, BYTES));
	CUDA(CtxEnablePeerAccess(contexts[0], 0)); /* device 1 may reach what device 0 has, had and will have */
	copy_over(there, before, 41);
	after = cuda_block(BYTES, 42);
	copy_over(there, after, 42);
	for (int i = 0; i < 3; i++) {
		controller_park();
		CHECK_EQUAL(page_read().gpus[0].parked_bytes, 2 * BYTES);
		CHECK_EQUAL(page_read().gpus[1].parked_bytes, BYTES);
		CHECK_RESUMES();
		copy_over(there, before, 41);
		copy_over(there, after, 42);
	}
	access_ends(there, before);
	return 0;
}
