/* After DYING a waiting call, whatever it waits for, gets DEINITIALIZED, and so do later calls at the closed gate; a process that
 * lives on after all can be resumed. With every call that the end of a process makes, nothing hangs.  */
#include "harness.h"

static CUdeviceptr block;
static _Atomic int results[3];

static void *copy(void *unused)
{
	uint32_t word;

	(void)unused;
	CUDA(CtxSetCurrent(cuda_context));
	atomic_store(&results[0], cu.MemcpyDtoH(&word, block, 4));
	return NULL;
}

static void *load(void *unused)
{
	CUmodule module;

	(void)unused;
	CUDA(CtxSetCurrent(cuda_context));
	atomic_store(&results[1], load_module(&module));
	return NULL;
}

static void *create(void *unused)
{
	CUcontext context;

	(void)unused;
	atomic_store(&results[2], cu.CtxCreate(&context, 0, 0));
	return NULL;
}

int main(int argc, char **argv)
{
	void *(*const bodies[3])(void *) = {copy, load, create};
	pthread_t threads[3];
	CUdeviceptr other;

	cuda_begin(argc, argv, 30);
	CUDA(MemAlloc(&block, MiB(4)));
	CUDA(MemAlloc(&other, MiB(4)));
	fill_pattern(block, MiB(4), 9);
	controller_park();
	for (int i = 0; i < 3; i++)
		thread_start(&threads[i], bodies[i], NULL);
	PAGE_UNTIL(page.want == 3);
	controller_command(AFFINODE_COMMAND_DYING, 0);
	for (int i = 0; i < 3; i++) {
		thread_join(threads[i]);
		CHECK_EQUAL(atomic_load(&results[i]), CUDA_ERROR_DEINITIALIZED);
	}
	CHECK_EQUAL(launch_add(NULL, block, 4, 1), CUDA_ERROR_DEINITIALIZED);
	CUDA(MemFree(other));
	CUDA(CtxSynchronize());
	PAGE_UNTIL(page.flags & AFFINODE_PAGE_DYING);
	CHECK_RESUMES();
	CHECK(holds_pattern(block, MiB(4), 9, 0));
	CHECK(controller_move(AFFINODE_COMMAND_PARK) != AFFINODE_OK); /* not again, at the end */
	CHECK(holds_pattern(block, MiB(4), 9, 0));
	return 0;
}
