/* A fork at any moment - other threads resolving entry points, allocating, the mover at work - leaves a child that ends as
 * it would without us: its CUDA calls fail, its dlsym answers, nothing hangs; and the parent does not notice.  */
#include "harness.h"

#include <dlfcn.h>
#include <sys/wait.h>

#include "watcher.h"

static CUdeviceptr block;
static _Atomic bool stop, registers, lingers, forked;
static pid_t forks; /* the thread that does */
static uint64_t random_state;
static int (*next_on_exit)(void (*)(int, void *), void *);

/* Instead of glibc's, which holds the lock that exit takes: a child forked meanwhile would wait for it for ever.  */
int on_exit(void (*handler)(int, void *), void *argument)
{
	bool meets_fork = atomic_load(&lingers);
	int result;

	atomic_store(&registers, true);
	while (atomic_load(&lingers))
		test_pause();
	if (meets_fork)
		thread_waits_or(forks, &forked); /* a fork that does not wait for this is through by then */
	result = next_on_exit(handler, argument);
	atomic_store(&registers, false);
	return result;
}

static void *resolve(void *unused)
{
	static const char *const names[] = {"cuMemsetD8_v2", "cuMemsetD16_v2", "cuMemAllocManaged", "cuEventQuery",
					    "cuMemHostRegister_v2", "cuCtxSetLimit", "cuMemPrefetchAsync_v2", "cuArrayCreate_v2"};
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

	if (atomic_load(&registers))
		_exit(3);
	if (!cuda_symbol("cuMemsetD8_v2") || !cuda_symbol("cuMemsetD32_v2"))
		_exit(1);
	if (cu.MemAlloc(&at, MiB(2)) == CUDA_SUCCESS || cu.MemcpyDtoH(&word, block, 4) == CUDA_SUCCESS)
		_exit(2);
	cu.MemFree(block);
	exit(42); /* through the exit handlers */
}

static void fork_once(void)
{
	int status = 0;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0)
		in_child();
	watcher_add(pid);
	while (waitpid(pid, &status, WNOHANG) == 0) {
		controller_pump();
		test_pause();
	}
	watcher_remove(pid);
	CHECK(WIFEXITED(status));
	CHECK_EQUAL(WEXITSTATUS(status), 42);
}

/* The allocator of gcc's address sanitizer has locks that a child inherits held (gcc before 14): there, the other threads rest
 * while this one forks.  */
#ifdef __SANITIZE_ADDRESS__
#define AT_REST true
#else
#define AT_REST false
#endif

/* Fork within `us` of the command's start, or after it; what became of the command.  */
static uint32_t fork_during(uint32_t command, unsigned us)
{
	uint32_t epoch = controller_command(command, 0), status;

	if (!AT_REST) {
		usleep((unsigned)(test_random(&random_state) % us));
		fork_once();
	}
	status = controller_reply(epoch).status;
	if (AT_REST)
		fork_once();
	return status;
}

static void has_forked(void)
{
	atomic_store(&forked, true);
}

static void fork_while_an_exit_handler_is_registered(void)
{
	uint32_t epoch;
	int status;

	CHECK_EQUAL(pthread_atfork(NULL, has_forked, NULL), 0);
	forks = gettid();
	atomic_store(&lingers, true);
	epoch = controller_command(AFFINODE_COMMAND_PARK, 0);
	UNTIL(atomic_load(&registers));
	atomic_store(&lingers, false);
	fork_once();
	status = controller_reply(epoch).status;
	CHECK(status == AFFINODE_OK || status == AFFINODE_BUSY); /* the fork takes longer than the mover's patience */
	if (status == AFFINODE_OK)
		CHECK_RESUMES();
}

int main(int argc, char **argv)
{
	const unsigned rounds = test_rounds(60);
	pthread_t threads[2];

	test_begin(argc, argv, 60);
#ifdef __SANITIZE_THREAD__
	puts("not under this sanitizer, whose own threads and locks do not survive a fork");
	return 0;
#endif
	random_state = test_seed;
	*(void **)&next_on_exit = dlsym(RTLD_NEXT, "on_exit");
	cuda_start();
	controller_accept();
	block = cuda_block(MiB(2), 101);
	if (!AT_REST) {
		fork_while_an_exit_handler_is_registered();
		thread_start(&threads[0], resolve, NULL);
	}
	for (unsigned i = 0; i < rounds; i++) {
		if (!AT_REST && i == rounds / 2)
			thread_start(&threads[1], allocate, NULL);
		if (fork_during(AFFINODE_COMMAND_PARK, 4000) == AFFINODE_OK)
			CHECK_EQUAL(fork_during(AFFINODE_COMMAND_RESUME, 3000), AFFINODE_OK);
		CHECK(holds_pattern(block, MiB(2), 101, 0));
	}
	atomic_store(&stop, true);
	for (int i = 0; !AT_REST && i < 2; i++)
		thread_join(threads[i]);
	return 0;
}
