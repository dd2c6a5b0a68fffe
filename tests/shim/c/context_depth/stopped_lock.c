/* A process is stopped with the GPU's lock in its hand: others do not wait for it for long, and leave it what it may need to come
 * back. What does not leave that is asked for again and again. A process that runs is waited for.  */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#include "depth.h"

#define GRANTS 105

static struct call call;
static _Atomic int allocated;
static _Atomic uint64_t wanted;

/* Opted in, so that there is a lock; it holds it until it is told, and first of all it is stopped.  */
static void holder(void)
{
	char byte;

	depth_ask();
	cuda_start();
	gpu_lock_take(NULL);
	CHECK_EQUAL(kill(getpid(), SIGSTOP), 0);
	CHECK_EQUAL(read(TALK_FD, &byte, 1), 1);
}

static void allocate(void)
{
	CUdeviceptr at;

	CUDA(CtxSetCurrent(cuda_context));
	atomic_store(&allocated, cu.MemAlloc(&at, atomic_load(&wanted)));
	if (atomic_load(&allocated) == CUDA_SUCCESS)
		CUDA(MemFree(at));
}

static void begin_to_allocate(uint64_t bytes)
{
	atomic_store(&wanted, bytes);
	call_begin(&call, allocate);
}

/* All but a GiB: there would be too little for the context that the holder may be about to bring back. The controller, which finds that
 * there is room, may say so more often than is believed of a full GPU.  */
static void what_the_holder_needs_is_left(void)
{
	begin_to_allocate((cuda_free_bytes() - MiB(1024)) / MiB(2) * MiB(2));
	for (int i = 0; i <= GRANTS; i++) {
		uint32_t request = controller_noticed(AFFINODE_NOTIFY_ROOM, NULL);

		CHECK_EQUAL(controller_noticed_flags, AFFINODE_NOTIFY_LOCKED);
		controller_answer_room(request, i < GRANTS);
	}
	call_end(&call);
	CHECK_EQUAL(atomic_load(&allocated), CUDA_ERROR_OUT_OF_MEMORY);
}

int main(int argc, char **argv)
{
	int status, talk;
	pid_t pid;

	test_begin(argc, argv, 40);
	depth_is_needed();
	if (test_role) {
		holder();
		return 0;
	}
	cuda_load();
	CUDA(Init(0));
	controller_accept();
	pid = child_start_talking("holder", &talk);
	while (waitpid(pid, &status, WUNTRACED) < 0)
		CHECK_EQUAL(errno, EINTR);
	CHECK(WIFSTOPPED(status));
	cuda_start(); /* a context */
	for (int i = 0; i < 20; i++) {
		begin_to_allocate(MiB(8));
		call_end(&call);
		CHECK_EQUAL(atomic_load(&allocated), CUDA_SUCCESS);
	}
	what_the_holder_needs_is_left();
	CHECK_EQUAL(kill(pid, SIGCONT), 0);
	begin_to_allocate(MiB(8));
	CHECK(call_waits(&call));
	CHECK_EQUAL(write(talk, "+", 1), 1);
	call_end(&call);
	CHECK_EQUAL(atomic_load(&allocated), CUDA_SUCCESS);
	CHECK_EQUAL(child_wait(pid), 0);
	return 0;
}
