/* Programs that put a handler of SIGINT over the one they find, and call that one from theirs, while a call waits without a
 * controller, so that what they find is the shim's: each handler runs once, the first one too, and the wait ends. What they
 * kept stays good when no call waits any more, and cancels nothing then.  */
#include <signal.h>
#include <sys/wait.h>

#include "neighbour.h"

#define BYTES MiB(64)

static CUdeviceptr block;
static pthread_t waiting;
static _Atomic unsigned first_runs, plain_runs, info_runs, inner_runs, ring_runs;
static struct sigaction under_plain, under_info, under_ring;

/* As a well-written library calls what it found.  */
static void call_on(const struct sigaction *found, int number, siginfo_t *info, void *context)
{
	if (found->sa_flags & SA_SIGINFO)
		found->sa_sigaction(number, info, context);
	else if (found->sa_handler != SIG_DFL && found->sa_handler != SIG_IGN)
		found->sa_handler(number);
}

static void first(int number)
{
	CHECK_EQUAL(number, SIGINT);
	atomic_fetch_add(&first_runs, 1);
}

static void with_plain(int number)
{
	atomic_fetch_add(&plain_runs, 1);
	call_on(&under_plain, number, NULL, NULL);
}

/* An interrupt comes within it, once.  */
static void with_info(int number, siginfo_t *info, void *context)
{
	CHECK(info && info->si_signo == SIGINT && context);
	if (atomic_fetch_add(&info_runs, 1) == 0) {
		CHECK_EQUAL(raise(SIGINT), 0);
		atomic_fetch_add(&inner_runs, atomic_load(&info_runs) == 2);
	}
	call_on(&under_info, number, info, context);
}

static void in_a_ring(int number)
{
	atomic_fetch_add(&ring_runs, 1);
	call_on(&under_ring, number, NULL, NULL);
}

static bool is_on_top(void *handler)
{
	struct sigaction now;

	CHECK_EQUAL(sigaction(SIGINT, NULL, &now), 0);
	return (void *)now.sa_handler == handler;
}

static void nothing(int number)
{
	(void)number;
}

/* A call that waits, with only the signal to interrupt it.  */
static void begin_to_wait(void *top)
{
	read_a_word(&waiting, block);
	UNTIL(!is_on_top(top));
}

static void set(void *handler, int flags, struct sigaction *found)
{
	struct sigaction action = {.sa_flags = flags};

	action.sa_handler = (void (*)(int))handler;
	CHECK_EQUAL(sigaction(SIGINT, &action, found), 0);
}

/* Over what is there, and wait until the shim's is over it again: a waiting call looks now and then, and after any signal.  */
static void put_over(void *handler, int flags, struct sigaction *found)
{
	set(handler, flags, found);
	while (is_on_top(handler)) {
		CHECK_EQUAL(pthread_kill(waiting, SIGUSR1), 0);
		test_pause();
	}
}

static void interrupt(void)
{
	CHECK_EQUAL(atomic_load(&word_read), -1);
	CHECK_EQUAL(raise(SIGINT), 0);
	thread_join(waiting);
	CHECK_EQUAL(atomic_load(&word_read), CUDA_ERROR_DEVICE_UNAVAILABLE);
}

/* In a child that is forked while a call waits, the handlers are the program's own, and chained as well.  */
static void fork_meanwhile(void)
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		atomic_store(&info_runs, 1); /* nothing within it */
		if (!is_on_top(with_info) || raise(SIGINT) != 0)
			_exit(1);
		_exit(atomic_load(&first_runs) == 1 && atomic_load(&plain_runs) == 1 ? 42 : 2);
	}
	CHECK_EQUAL(waitpid(pid, &status, 0), pid);
	CHECK(WIFEXITED(status));
	CHECK_EQUAL(WEXITSTATUS(status), 42);
}

/* Two handlers over the shim's, one of each kind, the upper one entered again within itself. It is ignored in between.  */
static void chain(void)
{
	struct sigaction found;

	begin_to_wait(first);
	put_over(with_plain, SA_RESTART, &under_plain);
	CHECK(under_plain.sa_handler != first);
	put_over(with_info, SA_SIGINFO | SA_NODEFER, &under_info);
	fork_meanwhile();
	set(SIG_IGN, 0, &found);
	CHECK_EQUAL(pthread_kill(waiting, SIGUSR1), 0);
	CHECK_EQUAL(raise(SIGINT), 0);
	CHECK(is_on_top(SIG_IGN));
	CHECK_EQUAL(atomic_load(&first_runs), 0);
	put_over(with_info, SA_SIGINFO | SA_NODEFER, &found);
	interrupt();
	CHECK_EQUAL(atomic_load(&info_runs), 2);
#ifndef __SANITIZE_THREAD__ /* which puts signals off that come within a handler */
	CHECK_EQUAL(atomic_load(&inner_runs), 1);
#endif
	CHECK_EQUAL(atomic_load(&plain_runs), 2);
	CHECK_EQUAL(atomic_load(&first_runs), 2);
	CHECK(is_on_top(with_info)); /* the shim's is gone, but for what they kept */
}

/* A controller is there: the chain is as whole, and cancels nothing.  */
static void call_what_was_kept(void)
{
	controller_start_again();
	controller_command(AFFINODE_COMMAND_CANCEL_END, 0);
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_NO_GPU_ROOM); /* so the other was heard too */
	read_a_word(&waiting, block);
	PAGE_UNTIL(page.want == 1);
	UNTIL(is_on_top(with_info));
	CHECK_EQUAL(raise(SIGINT), 0);
	CHECK_EQUAL(atomic_load(&info_runs), 3);
	CHECK_EQUAL(atomic_load(&plain_runs), 3);
	CHECK_EQUAL(atomic_load(&first_runs), 3);
	CHECK(!(page_read().flags & AFFINODE_PAGE_CANCELLING));
	CHECK_EQUAL(atomic_load(&word_read), -1);
	controller_command(AFFINODE_COMMAND_CANCEL, 0);
	thread_join(waiting);
	CHECK_EQUAL(atomic_load(&word_read), CUDA_ERROR_DEVICE_UNAVAILABLE);
	controller_stop();
}

/* A program that sets its handler twice, and takes the shim's for another's: the ring has an end.  */
static void make_a_ring(void)
{
	struct sigaction found;

	begin_to_wait(with_info);
	put_over(in_a_ring, 0, &found);
	put_over(in_a_ring, 0, &under_ring);
	interrupt();
	CHECK(atomic_load(&ring_runs) > 1 && atomic_load(&ring_runs) < 100);
	CHECK(is_on_top(in_a_ring));
}

int main(int argc, char **argv)
{
	struct neighbour neighbour;

	setenv("AFFINODE_SIM_MEMORY", "320MiB", 1);
	test_begin(argc, argv, 60);
	neighbour_main();
	signal(SIGINT, first);
	signal(SIGUSR1, nothing);
	cuda_start();
	controller_accept();
	CUDA(MemAlloc(&block, BYTES));
	controller_park();
	neighbour = neighbour_start(0);
	controller_stop();
	chain();
	call_what_was_kept();
	make_a_ring();
	neighbour_end(neighbour);
	return 0;
}
