/* A process is stopped with the GPU's lock in its hand: others do not wait for it for long, and leave it what it may need to come
 * back. A process that runs is waited for.  */
#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "depth.h"

static _Atomic pid_t thread_id;
static _Atomic int allocated;
static _Atomic bool done;
static _Atomic uint64_t wanted;

/* Opted in, so that there is a lock; it holds it until it is told, and first of all it is stopped.  */
static void holder(void)
{
	char byte;

	depth_ask();
	cuda_start();
	CHECK(gpu_lock_take() >= 0);
	CHECK_EQUAL(kill(getpid(), SIGSTOP), 0);
	CHECK_EQUAL(read(TALK_FD, &byte, 1), 1);
}

static void *allocate(void *unused)
{
	CUdeviceptr at;

	(void)unused;
	CUDA(CtxSetCurrent(cuda_context));
	atomic_store(&thread_id, (pid_t)syscall(SYS_gettid));
	atomic_store(&allocated, cu.MemAlloc(&at, atomic_load(&wanted)));
	atomic_store(&done, true);
	if (atomic_load(&allocated) == CUDA_SUCCESS)
		CUDA(MemFree(at));
	return NULL;
}

static pthread_t begin_to_allocate(uint64_t bytes)
{
	pthread_t thread;

	atomic_store(&thread_id, 0);
	atomic_store(&done, false);
	atomic_store(&wanted, bytes);
	thread_start(&thread, allocate, NULL);
	UNTIL(atomic_load(&thread_id));
	return thread;
}

/* All but a GiB: there would be too little for the context that the holder may be about to bring back.  */
static void what_the_holder_needs_is_left(void)
{
	pthread_t thread;
	uint32_t request;

	thread = begin_to_allocate((cuda_free_bytes() - MiB(1024)) / MiB(2) * MiB(2));
	request = controller_noticed(AFFINODE_NOTIFY_ROOM, NULL);
	controller_answer_room(request, false);
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&allocated), CUDA_ERROR_OUT_OF_MEMORY);
}

int main(int argc, char **argv)
{
	pthread_t thread;
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
		thread = begin_to_allocate(MiB(8));
		thread_join(thread);
		CHECK_EQUAL(atomic_load(&allocated), CUDA_SUCCESS);
	}
	what_the_holder_needs_is_left();
	CHECK_EQUAL(kill(pid, SIGCONT), 0);
	thread = begin_to_allocate(MiB(8));
	CHECK(!thread_waits_or(atomic_load(&thread_id), &done));
	CHECK_EQUAL(write(talk, "+", 1), 1);
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&allocated), CUDA_SUCCESS);
	CHECK_EQUAL(child_wait(pid), 0);
	return 0;
}
