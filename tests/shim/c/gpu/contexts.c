/* Contexts come and go, primary and own, resident and parked: memory goes with its own context and with no other.  */
#include "gpu/devices.h"
#include "harness.h"

#define BYTES MiB(4)

static CUdeviceptr filled(uint32_t seed)
{
	CUdeviceptr at;

	CUDA(MemAlloc(&at, BYTES));
	CUDA(MemsetD32(at, seed, BYTES / 4));
	CUDA(CtxSynchronize());
	return at;
}

static bool is_filled(CUdeviceptr at, uint32_t seed)
{
	static uint32_t words[BYTES / 4];
	bool right = true;

	CUDA(MemcpyDtoH(words, at, BYTES));
	for (size_t i = 0; i < BYTES / 4; i++)
		right = right && words[i] == seed;
	return right;
}

/* Nothing is left of an ended primary context by which another one could be taken for it.  */
static void primary_is_forgotten(void)
{
#ifdef SHIM_LINKED
	CHECK(device_at(0)->primary == NULL);
#endif
}

/* A library that takes and gives back the primary context, beside a program with a context of its own.  */
static void primary_beside_own(bool parked)
{
	CUcontext own, primary;
	CUdeviceptr block;

	CUDA(CtxCreate(&own, 0, 0));
	block = filled(77);
	CUDA(DevicePrimaryCtxRetain(&primary, 0));
	CHECK(primary != own);
	if (parked)
		controller_park();
	CUDA(DevicePrimaryCtxRelease(0));
	if (parked)
		CHECK_RESUMES();
	CHECK(is_filled(block, 77));
	CUDA(DevicePrimaryCtxRetain(&primary, 0));
	CUDA(DevicePrimaryCtxReset(0));
	CHECK(is_filled(block, 77));
	cu.DevicePrimaryCtxRelease(0); /* allowed after a reset, which has ended it */
	CHECK(is_filled(block, 77));
	CHECK(cu.CtxDestroy(primary) != CUDA_SUCCESS); /* not a way to end it, and nothing is lost */
	CUDA(MemFree(block));
	CUDA(CtxDestroy(own));
}

static void *retain_later(void *context)
{
	CUDA(DevicePrimaryCtxRetain(context, 0));
	return NULL;
}

/* Reset and release while parked end what they would end; a later retain waits for the GPU and works.  */
static void primary_while_parked(bool reset)
{
	CUdeviceptr block, again;
	CUcontext primary;
	pthread_t thread;

	CUDA(DevicePrimaryCtxRetain(&primary, 0));
	CUDA(CtxSetCurrent(primary));
	block = filled(78);
	controller_park();
	CUDA(DevicePrimaryCtxRetain(&primary, 0)); /* only counted */
	CUDA(DevicePrimaryCtxRelease(0));
	CHECK_EQUAL(page_read().want, 0);
	if (reset)
		CUDA(DevicePrimaryCtxReset(0));
	cu.DevicePrimaryCtxRelease(0);
	primary_is_forgotten();
	PAGE_UNTIL(page.gpus[0].parked_bytes == 0);
	thread_start(&thread, retain_later, &primary);
	PAGE_UNTIL(page.want == 1);
	CHECK_RESUMES();
	thread_join(thread);
	CUDA(CtxSetCurrent(primary));
	again = filled(79);
	controller_park();
	CHECK_RESUMES();
	CHECK(is_filled(again, 79));
	CUDA(MemFree(again));
	CUDA(DevicePrimaryCtxRelease(0));
	primary_is_forgotten();
	(void)block;
}

/* Memory of cuMemCreate belongs to the device: it outlives the context it was made in, parked as well.  */
static void mapping_outlives_its_context(void)
{
	CUmemGenericAllocationHandle handle;
	CUcontext first, second;
	CUdeviceptr at;

	CUDA(CtxCreate(&first, 0, 0));
	CUDA(CtxCreate(&second, 0, 0));
	CUDA(CtxSetCurrent(second));
	CUdeviceptr other = filled(81);
	CUDA(CtxSetCurrent(first));
	CUDA(MemCreate(&handle, BYTES, &cuda_prop, 0));
	at = cuda_map(handle, BYTES);
	CUDA(MemsetD32(at, 80, BYTES / 4));
	CUDA(CtxSynchronize());
	controller_park();
	CUDA(CtxDestroy(first));
	CUDA(CtxSetCurrent(second));
	CHECK_RESUMES();
	CHECK(is_filled(at, 80));
	controller_park();
	CHECK_RESUMES();
	CHECK(is_filled(at, 80));
	CHECK(is_filled(other, 81));
	CUDA(MemUnmap(at, BYTES));
	CUDA(MemRelease(handle));
	CUDA(MemAddressFree(at, BYTES));
	CUDA(CtxDestroy(second));
}

/* One that has a stream and a little memory, but nothing that could move, is in no process's way.  */
static void beside_one_without_blocks(void)
{
	CUcontext primary, other;
	CUdeviceptr block, at;
	CUstream stream;

	CUDA(CtxCreate(&other, 0, 0));
	CUDA(StreamCreate(&stream, 0));
	CUDA(MemAlloc(&at, 4096));
	CUDA(DevicePrimaryCtxRetain(&primary, 0));
	CUDA(CtxSetCurrent(primary));
	block = filled(82);
	controller_park();
	CHECK_RESUMES();
	CHECK(is_filled(block, 82));
	CUDA(MemFree(block));
	CUDA(DevicePrimaryCtxRelease(0));
	CUDA(CtxSetCurrent(other));
	CUDA(CtxDestroy(other));
}

static _Atomic bool go_on;

static void until_told(void *unused)
{
	(void)unused;
	UNTIL(atomic_load(&go_on));
}

/* Work in a context that has nothing of its own may use what is another's.  */
static void while_one_without_anything_works(void)
{
	CUcontext primary, other;
	CUdeviceptr block;

	CUDA(DevicePrimaryCtxRetain(&primary, 0));
	CUDA(CtxSetCurrent(primary));
	block = filled(83);
	CUDA(CtxCreate(&other, 0, 0));
	atomic_store(&go_on, false);
	CUDA(LaunchHostFunc(NULL, until_told, NULL));
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_PARK), AFFINODE_BUSY);
	atomic_store(&go_on, true);
	CUDA(CtxSynchronize());
	controller_park();
	CHECK_RESUMES();
	CUDA(CtxDestroy(other));
	CUDA(CtxSetCurrent(primary));
	CHECK(is_filled(block, 83));
	CUDA(MemFree(block));
	CUDA(DevicePrimaryCtxRelease(0));
}

/* What stays on the GPU and is only counted is not counted any more when its context is gone.  */
static void small_memory_goes_along(void)
{
	uint64_t before = page_read().gpus[0].unmovable_bytes[AFFINODE_UNMOVABLE_SMALL];
	CUdeviceptr at;
	CUcontext own;

	CUDA(CtxCreate(&own, 0, 0));
	for (int i = 0; i < 100; i++)
		CUDA(MemAlloc(&at, 4096));
	PAGE_UNTIL(page.gpus[0].unmovable_bytes[AFFINODE_UNMOVABLE_SMALL] == before + 100 * 4096);
	CUDA(MemFree(at));
	PAGE_UNTIL(page.gpus[0].unmovable_bytes[AFFINODE_UNMOVABLE_SMALL] == before + 99 * 4096);
	CUDA(CtxDestroy(own));
	PAGE_UNTIL(page.gpus[0].unmovable_bytes[AFFINODE_UNMOVABLE_SMALL] == before);
}

int main(int argc, char **argv)
{
	test_begin(argc, argv, 30);
	cuda_load();
	CUDA(Init(0));
	controller_accept();
	for (int i = 0; i < 2; i++) {
		primary_beside_own(false);
		primary_beside_own(true);
		primary_while_parked(false);
		primary_while_parked(true);
		mapping_outlives_its_context();
		small_memory_goes_along();
		beside_one_without_blocks();
		while_one_without_anything_works();
	}
	return 0;
}
