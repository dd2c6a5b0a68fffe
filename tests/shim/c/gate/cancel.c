/* CANCEL fails exactly the calls that may be cancelled, for as long as it says; signals cancel nothing.  */
#include <signal.h>
#include <sys/time.h>

#include "harness.h"

enum { LAUNCH, COPY, ALLOC, STREAM, MODULE, KINDS };

static CUdeviceptr block;
static _Atomic int results[KINDS];
static _Atomic unsigned signals;

static int call(int kind)
{
	uint32_t word = 0;
	CUdeviceptr got;
	CUstream stream;
	CUmodule module;
	CUresult result;

	switch (kind) {
	case LAUNCH:
		return launch_add(NULL, block, 4, 0);
	case COPY:
		return cu.MemcpyDtoH(&word, block, 4);
	case ALLOC:
		result = cu.MemAlloc(&got, 4096);
		return result == CUDA_SUCCESS ? cu.MemFree(got) : result;
	case STREAM:
		result = cu.StreamCreate(&stream, 0);
		return result == CUDA_SUCCESS ? cu.StreamDestroy(stream) : result;
	default:
		result = load_module(&module);
		return result == CUDA_SUCCESS ? cu.ModuleUnload(module) : result;
	}
}

static void *caller(void *argument)
{
	int kind = (int)(uintptr_t)argument;

	CUDA(CtxSetCurrent(cuda_context));
	atomic_store(&results[kind], call(kind));
	return NULL;
}

static void on_signal(int number)
{
	(void)number;
	atomic_fetch_add(&signals, 1);
}

/* Every thread gets timer signals, and one by one is hit by hand, with SA_RESTART and without.  */
static void shower(pthread_t *threads, unsigned count)
{
	struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, other = {.sa_handler = on_signal};

	sigaction(SIGALRM, &action, NULL);
	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGUSR2, &other, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	UNTIL(atomic_load(&signals) > 50);
	setitimer(ITIMER_REAL, &never, NULL);
	for (unsigned n = 0; n < 50 * count; n++) {
		unsigned seen = atomic_load(&signals);

		pthread_kill(threads[n % count], n % 2 ? SIGUSR1 : SIGUSR2);
		UNTIL(atomic_load(&signals) > seen);
	}
}

static void start_callers(pthread_t *threads)
{
	for (int kind = 0; kind < KINDS; kind++) {
		atomic_store(&results[kind], -1);
		thread_start(&threads[kind], caller, (void *)(uintptr_t)kind);
	}
	PAGE_UNTIL(page.want == KINDS);
	PAGE_UNTIL(page.state == AFFINODE_STATE_QUEUED);
}

int main(int argc, char **argv)
{
	pthread_t threads[KINDS];

	cuda_begin(argc, argv, 40);
	block = cuda_block(MiB(2), 7);

	controller_park();
	start_callers(threads);
	shower(threads, KINDS);
	for (int kind = 0; kind < KINDS; kind++)
		CHECK_EQUAL(atomic_load(&results[kind]), -1);

	/* Only those that wait now: the next call waits again.  */
	controller_command(AFFINODE_COMMAND_CANCEL, 0);
	for (int kind = 0; kind < MODULE; kind++) {
		thread_join(threads[kind]);
		CHECK_EQUAL(atomic_load(&results[kind]), CUDA_ERROR_DEVICE_UNAVAILABLE);
	}
	PAGE_UNTIL(page.want == 1);
	CHECK_EQUAL(atomic_load(&results[MODULE]), -1);
	thread_start(&threads[COPY], caller, (void *)(uintptr_t)COPY);
	PAGE_UNTIL(page.want == 2);
	CHECK_RESUMES();
	thread_join(threads[COPY]);
	thread_join(threads[MODULE]);
	CHECK_EQUAL(atomic_load(&results[COPY]), CUDA_SUCCESS);
	CHECK_EQUAL(atomic_load(&results[MODULE]), CUDA_SUCCESS);

	/* Going on to fail, until the cell ends. A free is never refused.  */
	controller_park();
	controller_command(AFFINODE_COMMAND_CANCEL, 5000000000u);
	PAGE_UNTIL(page.flags & AFFINODE_PAGE_CANCELLING);
	for (int n = 0; n < 20; n++)
		CHECK_EQUAL(call((int)(n % MODULE)), CUDA_ERROR_DEVICE_UNAVAILABLE);
	controller_command(AFFINODE_COMMAND_CANCEL_END, 0);
	PAGE_UNTIL(!(page.flags & AFFINODE_PAGE_CANCELLING));
	start_callers(threads);
	CHECK_RESUMES();
	for (int kind = 0; kind < KINDS; kind++) {
		thread_join(threads[kind]);
		CHECK_EQUAL(atomic_load(&results[kind]), CUDA_SUCCESS);
	}

	/* It ends by itself, whatever is asked.  */
	controller_park();
	controller_command(AFFINODE_COMMAND_CANCEL, ~0ull);
	PAGE_UNTIL(page.flags & AFFINODE_PAGE_CANCELLING);
	thread_start(&threads[MODULE], caller, (void *)(uintptr_t)MODULE); /* keeps the page fresh */
	PAGE_UNTIL(!(page.flags & AFFINODE_PAGE_CANCELLING));
	CHECK_RESUMES();
	thread_join(threads[MODULE]);
	CHECK(holds_pattern(block, MiB(2), 7, 0));
	return 0;
}
