/* A process that has met no controller is out of memory at once where the GPU is full, as without the shim: a job that inherits a
 * notebook's environment, a machine where the controller cannot start. Only one that is being started is waited for.  */
#include <fcntl.h>
#include <sys/file.h>

#include "harness.h"

#define AT_ONCE_NS 5000000000u /* on a machine with other work */
#define TIMES 20

static CUdeviceptr block;

static void *wait_for_room(void *result)
{
	CUDA(CtxSetCurrent(cuda_context));
	*(_Atomic int *)result = cu.MemAlloc(&block, MiB(4));
	return NULL;
}

/* As client/starting.py does, beside the controller's socket.  */
static int begin_start(void)
{
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "%s", getenv("AFFINODE_SOCKET"));
	snprintf(strrchr(path, '/'), 16, "/starting.lock");
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	CHECK_EQUAL(flock(fd, LOCK_EX), 0);
	return fd;
}

int main(int argc, char **argv)
{
	_Atomic int result = -1;
	uint64_t begin, waited;
	CUdeviceptr filler;
	pthread_t thread;
	uint32_t number;
	int starting;

	setenv("AFFINODE_SIM_MEMORY", "256MiB", 1);
	test_begin(argc, argv, 100);
	controller_stop();
	cuda_start();
	CUDA(MemAlloc(&block, MiB(2)));
	CUDA(MemFree(block));
	filler = cuda_fill(0);
	begin = test_now_ns();
	for (int i = 0; i < TIMES; i++)
		CHECK_EQUAL(cu.MemAlloc(&block, MiB(4)), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(test_now_ns() - begin < AT_ONCE_NS);

	/* One is being started: it is waited for, and asked.  */
	starting = begin_start();
	thread_start(&thread, wait_for_room, (void *)&result);
	begin = test_now_ns();
	UNTIL((waited = test_now_ns() - begin) > (test_rounds(1) > 1 ? 33000000000u : 2500000000u));
	CHECK_EQUAL(atomic_load(&result), -1);
	controller_start_again();
	close(starting);
	number = controller_noticed(AFFINODE_NOTIFY_ROOM, NULL); /* before there is room: it might take that without asking */
	CUDA(MemFree(filler));
	controller_answer_room(number, true);
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&result), CUDA_SUCCESS);
	return 0;
}
