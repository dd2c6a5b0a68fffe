/* A process that begins around a kill of the controller has met none, and waits for the next: the program that starts it may not have
 * noted the kill yet, so nothing says that one is being started.  */
#include "harness.h"

static CUdeviceptr block;
static _Atomic int result = -1;

static void *wait_for_room(void *unused)
{
	(void)unused;
	CUDA(CtxSetCurrent(cuda_context));
	atomic_store(&result, cu.MemAlloc(&block, MiB(4)));
	return NULL;
}

static void waits_for(uint64_t ns)
{
	uint64_t begin = test_now_ns(), waited;

	UNTIL((waited = test_now_ns() - begin) > ns);
	CHECK_EQUAL(atomic_load(&result), -1);
}

int main(int argc, char **argv)
{
	CUdeviceptr filler;
	pthread_t thread;
	uint32_t number;

	setenv("AFFINODE_SIM_MEMORY", "256MiB", 1);
	test_begin(argc, argv, 100);
	controller_kill(); /* before it has welcomed the process */
	cuda_start();
	CUDA(MemAlloc(&block, MiB(2)));
	CUDA(MemFree(block));
	filler = cuda_fill(0);
	thread_start(&thread, wait_for_room, NULL);
	waits_for(2500000000u);

	/* The next is killed, too, before it has read what the process is.  */
	controller_listen_again();
	controller_accept_silently();
	controller_kill();
	waits_for(1000000000u);

	controller_start_again();
	number = controller_noticed(AFFINODE_NOTIFY_ROOM, NULL); /* before there is room: it might take that without asking */
	CUDA(MemFree(filler));
	controller_answer_room(number, true);
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&result), CUDA_SUCCESS);
	return 0;
}
