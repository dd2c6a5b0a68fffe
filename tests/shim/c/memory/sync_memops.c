/* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, which is set for memory that a network card reaches: the driver refuses it for mapped
 * memory, so the promise is the shim's. Copies and fills that are not asynchronous by name return when they are done; and the
 * memory stays where the card finds it.  */
#include "harness.h"

#define BYTES MiB(4)
#define WORK_NS (60 * 1000 * 1000ull)

static uint32_t *flag; /* the GPU waits for it */

/* With work before it in the stream that ends by itself: whether the fill is done when the call returns.  */
static bool fill_is_done(CUdeviceptr at)
{
	CHECK_EQUAL(launch_spin(NULL, WORK_NS), CUDA_SUCCESS);
	CUDA(MemsetD32(at, 5, BYTES / 4));
	return cu.StreamQuery(NULL) == CUDA_SUCCESS;
}

/* With work before it that ends only after the call returned: a fill that waited would hang.  */
static void fill_does_not_wait(CUdeviceptr at, bool asynchronous)
{
	__atomic_store_n(flag, 0, __ATOMIC_SEQ_CST);
	CHECK_EQUAL(launch_wait_flag(NULL, flag), CUDA_SUCCESS);
	if (asynchronous)
		CUDA(MemsetD32Async(at, 1, BYTES / 4, NULL));
	else
		CUDA(MemsetD32(at, 1, BYTES / 4));
	CHECK_EQUAL(cu.StreamQuery(NULL), CUDA_ERROR_NOT_READY);
	__atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
	CUDA(CtxSynchronize());
}

static unsigned asked(CUdeviceptr at)
{
	unsigned value = 7;

	CUDA(PointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at));
	return value;
}

static CUresult set(CUdeviceptr at, unsigned value)
{
	return cu.PointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at);
}

int main(int argc, char **argv)
{
	CUdeviceptr flagged, other;

	cuda_begin(argc, argv, 60);
	CUDA(MemHostAlloc((void **)&flag, sizeof(*flag), 0));
	CUDA(MemAlloc(&flagged, BYTES));
	CUDA(MemAlloc(&other, BYTES));
	CHECK_EQUAL(asked(flagged), 1); /* as long as it is not cleared */
	fill_does_not_wait(flagged, false);
	CHECK_EQUAL(set(flagged + 4096, 1), CUDA_SUCCESS);
	CHECK_EQUAL(asked(flagged), 1);
	CHECK_EQUAL(asked(other), 1);
	CHECK(fill_is_done(flagged));
	fill_does_not_wait(flagged, true);
	CHECK_EQUAL(cu.PointerSetAttribute(NULL, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, flagged), CUDA_ERROR_INVALID_VALUE);

	fill_pattern(other, BYTES, 3);
	controller_park();
	CHECK_EQUAL(page_read().gpus[0].parked_bytes, BYTES);
	CHECK_EQUAL(page_read().gpus[0].unmovable_bytes[AFFINODE_UNMOVABLE_SHARED], BYTES);
	CHECK_EQUAL(asked(flagged), 1);
	CHECK_RESUMES();
	CHECK(holds_pattern(other, BYTES, 3, 0));

	CHECK_EQUAL(set(flagged, 0), CUDA_SUCCESS);
	CHECK_EQUAL(set(flagged, 0), CUDA_SUCCESS);
	CHECK_EQUAL(asked(flagged), 0);
	fill_does_not_wait(flagged, false);
	CHECK_EQUAL(set(flagged, 1), CUDA_SUCCESS);
	CHECK(fill_is_done(flagged));
	CUDA(MemFree(flagged)); /* and the promise goes with the memory */
	fill_does_not_wait(other, false);
	return 0;
}
