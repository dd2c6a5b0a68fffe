/* The looks at the GPU's memory are processes, and the program cannot tell: no SIGCHLD, nothing for its waits, no descriptor,
 * nothing dead left behind, and what it does with its signals does not harm them.  */
#include "depth.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#define BYTES MiB(4)
#define LOOKS 40
#define CYCLES 3

static CUdeviceptr block;
static _Atomic int died, reaped, interrupts;
static _Atomic bool done;
static pid_t own_child;

static void on_signal(int number)
{
	atomic_fetch_add(number == SIGCHLD ? &died : &interrupts, 1);
}

static void handle(int number, void (*handler)(int))
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};

	CHECK_EQUAL(sigaction(number, &action, NULL), 0);
}

static unsigned descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	unsigned count = 0;

	CHECK(folder != NULL);
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

/* As a supervisor waits: for any child, until it has none.  */
static void *reap_any(void *unused)
{
	int status;
	pid_t pid;

	(void)unused;
	while ((pid = waitpid(-1, &status, 0)) > 0) {
		CHECK_EQUAL(pid, own_child);
		atomic_fetch_add(&reaped, 1);
	}
	CHECK_EQUAL(errno, ECHILD);
	return NULL;
}

/* As Ctrl-C: to the whole process group.  */
static void *interrupt(void *unused)
{
	(void)unused;
	while (!atomic_load(&done)) {
		CHECK_EQUAL(kill(0, SIGINT), 0);
		test_pause();
	}
	return NULL;
}

/* Each asks NVML, on the program's own thread, and does not wake it.  */
static void *look_often(void *unused)
{
	size_t free_bytes = 0, total = 0;

	(void)unused;
	CUDA(CtxSetCurrent(cuda_context));
	for (int i = 0; i < LOOKS; i++) {
		CUDA(MemGetInfo(&free_bytes, &total));
		CHECK_EQUAL(free_bytes, total); /* no process is on the GPU */
	}
	CHECK_EQUAL(page_read().depth, AFFINODE_DEPTH_CONTEXT);
	return NULL;
}

static void cycle(void)
{
	pthread_t one, other;
	uint64_t begun;

	park_deep_surely();
	begun = test_now_ns();
	thread_start(&one, look_often, NULL);
	thread_start(&other, look_often, NULL);
	thread_join(one);
	thread_join(other);
	fprintf(stderr, "a look takes %llu us\n", (unsigned long long)(test_now_ns() - begun) / (2 * LOOKS) / 1000);
	CHECK_RESUMES();
	CHECK(holds_pattern(block, BYTES, 5, 0));
}

/* A child of its own, which lives until it is killed.  */
static void child_begin(void)
{
	own_child = fork();
	CHECK(own_child >= 0);
	if (own_child > 0)
		return;
	signal(SIGINT, SIG_IGN);
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	pthread_t reaper, interrupter;
	unsigned before;
	int status;

	setpgid(0, 0);
	test_begin(argc, argv, 100);
	depth_ask();
	handle(SIGCHLD, on_signal);
	handle(SIGINT, on_signal);
	child_begin();
	cuda_start();
	controller_accept();
	block = cuda_block(BYTES, 5);
	thread_start(&reaper, reap_any, NULL);
	cycle();
	before = descriptors();
	thread_start(&interrupter, interrupt, NULL);
	for (int i = 0; i < CYCLES; i++)
		cycle();
	atomic_store(&done, true);
	thread_join(interrupter);
	CHECK(atomic_load(&interrupts) > 0);
	UNTIL(descriptors() <= before); /* the shim's threads have one more for a moment, now and then */
	CHECK_EQUAL(atomic_load(&died), 0);
	CHECK_EQUAL(atomic_load(&reaped), 0);
	CHECK_EQUAL(waitpid(-1, &status, WNOHANG | __WALL), 0); /* its own child alone, alive */

	CHECK_EQUAL(kill(own_child, SIGKILL), 0); /* the handler and the thread do work */
	thread_join(reaper);
	CHECK_EQUAL(atomic_load(&reaped), 1);
	CHECK_EQUAL(atomic_load(&died), 1);
	CHECK_EQUAL(waitpid(-1, &status, WNOHANG | __WALL), -1);
	CHECK_EQUAL(errno, ECHILD);

	handle(SIGCHLD, SIG_IGN); /* children of ours would have no parent: the looks find theirs */
	cycle();
	handle(SIGCHLD, SIG_DFL);
	return 0;
}
