/* A program whose context meets a full GPU waits for room as an allocation does: granted, denied, interrupted.  */
#include "harness.h"

static CUdeviceptr filler;
static CUcontext first, primary;
static _Atomic int result;

static void *begin(void *unused)
{
	atomic_store(&result, cu.DevicePrimaryCtxRetain(&primary, 0));
	return unused;
}

static uint32_t begin_on_full_gpu(pthread_t *thread)
{
	uint64_t bytes;
	uint32_t number;

	atomic_store(&result, -1);
	thread_start(thread, begin, NULL);
	number = controller_noticed(AFFINODE_NOTIFY_ROOM, &bytes);
	CHECK(bytes >= MiB(2) && bytes <= MiB(16));
	return number;
}

int main(int argc, char **argv)
{
	size_t free_bytes, total;
	pthread_t thread;
	uint32_t number;

	setenv("AFFINODE_SIM_MEMORY", "256MiB", 1);
	setenv("AFFINODE_SIM_CONTEXT", "16MiB", 1);
	test_begin(argc, argv, 40);
	cuda_load();
	CUDA(Init(0));
	CUDA(CtxCreate(&first, 0, 0)); /* beside it, the primary context takes memory of its own */
	controller_accept();
	CUDA(MemAlloc(&filler, MiB(2))); /* what the shim takes for itself is taken then */
	CUDA(MemFree(filler));
	CUDA(MemGetInfo(&free_bytes, &total));
	CUDA(MemAlloc(&filler, free_bytes / MiB(2) * MiB(2)));

	number = begin_on_full_gpu(&thread);
	controller_answer_room(number, false);
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&result), CUDA_ERROR_OUT_OF_MEMORY);

	begin_on_full_gpu(&thread);
	controller_command(AFFINODE_COMMAND_CANCEL, 0);
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&result), CUDA_ERROR_OUT_OF_MEMORY);

	number = begin_on_full_gpu(&thread);
	CHECK_EQUAL(atomic_load(&result), -1);
	CUDA(MemFree(filler));
	controller_answer_room(number, true);
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&result), CUDA_SUCCESS);
	CUDA(CtxSetCurrent(primary));
	CUDA(MemAlloc(&filler, MiB(2)));
	return 0;
}
