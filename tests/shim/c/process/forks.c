/* A fork at any moment - other threads resolving entry points, allocating, the mover at work - leaves a child that ends as
 * it would without us: its CUDA calls fail, its dlsym answers, nothing hangs; and the parent does not notice.  */
#include "harness.h"

#include <sys/wait.h>

static CUdeviceptr block;
static _Atomic bool stop;

static void *resolve(void *unused)
{
	static const char *const names[] = {"cuMemsetD8_v2", "cuMemsetD16_v2", "cuMemAllocManaged", "cuEventQuery",
					    "cuMemHostRegister_v2", "cuFuncLoad", "cuMemAdvise", "cuModuleLoad"};
	unsigned n = 0;

	(void)unused;
	while (!atomic_load(&stop))
		CHECK(cuda_symbol(names[n++ % 8]) != NULL);
	return NULL;
}

static void *allocate(void *unused)
{
	CUdeviceptr at;

	(void)unused;
	CUDA(CtxSetCurrent(cuda_context));
	while (!atomic_load(&stop)) {
		CUDA(MemAlloc(&at, MiB(2)));
		CUDA(MemFree(at));
		usleep(1000);
	}
	return NULL;
}

/* In the child, which has this thread alone.  */
static void in_child(void)
{
	CUdeviceptr at;
	uint32_t word;

	if (!cuda_symbol("cuMemsetD8_v2") || !cuda_symbol("cuMemsetD32_v2"))
		_exit(1);
	if (cu.MemAlloc(&at, MiB(2)) == CUDA_SUCCESS || cu.MemcpyDtoH(&word, block, 4) == CUDA_SUCCESS)
		_exit(2);
	cu.MemFree(block);
	exit(42); /* through the exit handlers */
}

static void fork_once(void)
{
	uint64_t until = test_now_ns() + 10000000000u;
	int status = 0;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0)
		in_child();
	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (test_now_ns() > until) {
			char command[64];
			snprintf(command, sizeof(command), "kill -9 %d", (int)pid);
			if (system(command) == 0)
				test_fail(__FILE__, __LINE__, "the child hangs", pid);
		}
		controller_pump();
		test_pause();
	}
	CHECK(WIFEXITED(status));
	CHECK_EQUAL(WEXITSTATUS(status), 42);
}

int main(int argc, char **argv)
{
	const unsigned rounds = test_rounds(60);
	uint64_t random;
	pthread_t threads[2];

	test_begin(argc, argv, 60);
#ifdef __SANITIZE_THREAD__
	puts("not under this sanitizer, whose own threads and locks do not survive a fork");
	return 0;
#endif
	random = test_seed;
	cuda_start();
	controller_accept();
	CUDA(MemAlloc(&block, MiB(2)));
	CHECK_EQUAL(launch_pattern(NULL, block, MiB(2), 101), CUDA_SUCCESS);
	CUDA(CtxSynchronize());
	thread_start(&threads[0], resolve, NULL);
	for (unsigned i = 0; i < rounds; i++) {
		if (i == rounds / 2)
			thread_start(&threads[1], allocate, NULL);
		uint32_t epoch = controller_command(AFFINODE_COMMAND_PARK, 0);

		usleep((unsigned)(test_random(&random) % 4000));
		fork_once();
		if (controller_reply(epoch).status == AFFINODE_OK) {
			epoch = controller_command(AFFINODE_COMMAND_RESUME, 0);
			usleep((unsigned)(test_random(&random) % 3000));
			fork_once();
			CHECK_EQUAL(controller_reply(epoch).status, AFFINODE_OK);
		}
		CHECK(holds_pattern(block, MiB(2), 101, 0));
	}
	atomic_store(&stop, true);
	thread_join(threads[0]);
	thread_join(threads[1]);
	return 0;
}
