/* A process that is on the GPU frees memory and mappings while the mover gives up, bit by bit, what it keeps in host memory:
 * the mover sees nothing that is freed.  */
#include "harness.h"

#define KEPT 96

static _Atomic bool done;

static void *allocate_and_free(void *unused)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr block, mapped;

	(void)unused;
	CUDA(CtxSetCurrent(cuda_context));
	while (!atomic_load(&done)) {
		CUDA(MemAlloc(&block, MiB(2)));
		CUDA(MemCreate(&handle, MiB(2), &cuda_prop, 0));
		mapped = cuda_map(handle, MiB(2));
		CUDA(MemFree(block));
		CUDA(MemUnmap(mapped, MiB(2)));
		CUDA(MemAddressFree(mapped, MiB(2)));
		CUDA(MemRelease(handle));
	}
	return NULL;
}

int main(int argc, char **argv)
{
	CUdeviceptr kept[KEPT];
	pthread_t thread;

	cuda_begin(argc, argv, 30);
	for (unsigned i = 0; i < KEPT; i++)
		kept[i] = cuda_block(MiB(2), i);
	controller_park();
	CHECK_RESUMES();
	thread_start(&thread, allocate_and_free, NULL);
	for (uint64_t keep = page_read().retained_bytes; keep > 0; keep -= MiB(1) / 8) {
		controller_command(AFFINODE_COMMAND_TRIM, keep);
		test_pause();
	}
	controller_trim();
	atomic_store(&done, true);
	thread_join(thread);
	for (unsigned i = 0; i < KEPT; i++)
		CHECK(holds_pattern(kept[i], MiB(2), i, 0));
	return 0;
}
