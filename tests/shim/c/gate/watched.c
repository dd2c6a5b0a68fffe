/* A test that hangs says where: each of its threads is named with the functions it is in, the shim's own too, which block
 * all signals; and so is what the gate and the mover are about.  */
#include "harness.h"

#include "watcher.h"

static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool is_held; /* for ever: the main thread does not leave any more where it waits */
static CUdeviceptr block;

static void *copy_at_the_gate(void *unused)
{
	uint32_t word;

	UNTIL(atomic_load(&is_held));
	CUDA(CtxSetCurrent(cuda_context));
	cu.MemcpyDtoH(&word, block, sizeof(word));
	return unused;
}

static __attribute__((noinline)) void wait_for_ever(void)
{
	pthread_mutex_lock(&held);
	atomic_store(&is_held, true);
	pthread_mutex_lock(&held);
	pthread_mutex_unlock(&held);
}

static void child(void)
{
	pthread_t thread;
	char byte;

	dup2(TALK_FD, STDERR_FILENO);
	test_at("the step that hangs");
	cuda_start();
	CUDA(MemAlloc(&block, MiB(2)));
	CHECK_EQUAL(read(TALK_FD, &byte, 1), 1);
	thread_start(&thread, copy_at_the_gate, NULL);
	wait_for_ever();
}

static void expect(const char *report, const char *words)
{
	if (strstr(report, words))
		return;
	fprintf(stderr, "not in the report: %s\n%s\n", words, report);
	test_fail(__FILE__, __LINE__, "the report is not whole", 0);
}

int main(int argc, char **argv)
{
	static char report[1 << 18];
	size_t got = 0;
	ssize_t n;
	pid_t pid;
	int talk;

	test_begin(argc, argv, 60);
	if (test_role)
		child();
	pid = child_start_talking("child", &talk);
	controller_accept();
	PAGE_UNTIL(page.gpus[0].resident_bytes == MiB(2) && page.calls_in_flight == 0);
	controller_park();
	CHECK_EQUAL(write(talk, "+", 1), 1);
	PAGE_UNTIL(page.state == AFFINODE_STATE_QUEUED && page.want == 1);
	watcher_ask(pid);
	while ((n = read(talk, report + got, sizeof(report) - 1 - got)) > 0)
		got += (size_t)n;
	CHECK_EQUAL(child_wait(pid), 1);
	expect(report, "in child child");
	expect(report, "at the step that hangs");
	expect(report, "shim: on, queued");
	expect(report, "(closed");
	expect(report, "waits at the gate");
	expect(report, "its work is held by thread ");
	CHECK(strstr(report, "does not answer") == NULL);
	if (system("command -v addr2line >/dev/null") != 0)
		return 0;
	expect(report, "wait_for_ever at ");
	expect(report, "copy_at_the_gate at ");
	expect(report, "wait_at_gate at ");
	expect(report, "link_main at ");
	expect(report, "mover_main at ");
	return 0;
}
