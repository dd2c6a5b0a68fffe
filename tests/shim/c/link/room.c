/* An allocation that meets a full GPU asks for room before it fails: granted, denied, cancelled. With no controller to
 * ask it says so, can be interrupted, and ends in the time it said.  */
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>

#include "harness.h"

#define FASTER 8 /* 30 s are nearly four: this machine may take seconds for what is to be done in that time */

static CUdeviceptr filler;
static _Atomic uint64_t faster_from; /* 0: the clock runs as it does */
static _Atomic uint64_t jumped_ns;

static uint64_t true_ns(clockid_t clock)
{
	struct timespec t;

	CHECK_EQUAL(syscall(SYS_clock_gettime, clock, &t), 0);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* For the shim, too.  */
__attribute__((no_sanitize("thread", "address"))) int clock_gettime(clockid_t clock, struct timespec *now)
{
	uint64_t ns = true_ns(clock), from = atomic_load(&faster_from);

	if (clock == CLOCK_MONOTONIC && from)
		ns += (ns - from) * (FASTER - 1);
	if (clock == CLOCK_MONOTONIC)
		ns += atomic_load(&jumped_ns);
	*now = (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
	return 0;
}

static void run_clock_faster(void)
{
	atomic_store(&faster_from, true_ns(CLOCK_MONOTONIC));
}

/* What the user is told comes by here, and goes on to the log of a failure.  */
static struct {
	pthread_mutex_t lock;
	char text[1 << 14];
	size_t size;
	int from, to;
} told = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *listen_to_shim(void *unused)
{
	char part[512];
	ssize_t n;

	while ((n = read(told.from, part, sizeof(part))) > 0) {
		ssize_t passed_on = write(told.to, part, (size_t)n);

		(void)passed_on;
		pthread_mutex_lock(&told.lock);
		for (ssize_t i = 0; i < n && told.size < sizeof(told.text) - 1; i++)
			told.text[told.size++] = part[i];
		pthread_mutex_unlock(&told.lock);
	}
	return unused;
}

static void begin_to_listen(void)
{
	pthread_t thread;
	int ends[2];

	CHECK_EQUAL(pipe(ends), 0);
	told.from = ends[0];
	told.to = dup(STDERR_FILENO);
	CHECK(dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
	close(ends[1]);
	thread_start(&thread, listen_to_shim, NULL);
	pthread_detach(thread);
}

static bool was_told(const char *words)
{
	bool found;

	pthread_mutex_lock(&told.lock);
	found = strstr(told.text, words) != NULL;
	pthread_mutex_unlock(&told.lock);
	return found;
}

static _Atomic unsigned interrupts;

static void on_interrupt(int number)
{
	(void)number;
	atomic_fetch_add(&interrupts, 1);
}

static _Atomic int result;
static CUdeviceptr got;

static void *allocate(void *bytes)
{
	CUDA(CtxSetCurrent(cuda_context));
	atomic_store(&result, cu.MemAlloc(&got, (size_t)(uintptr_t)bytes));
	return NULL;
}

/* It asks for what the driver would take: whole pages.  */
static uint32_t ask(pthread_t *thread, size_t bytes)
{
	uint64_t asked, whole = (bytes + MiB(2) - 1) / MiB(2) * MiB(2);
	uint32_t number;

	atomic_store(&result, -1);
	thread_start(thread, allocate, (void *)(uintptr_t)bytes);
	number = controller_noticed(AFFINODE_NOTIFY_ROOM, &asked);
	CHECK_EQUAL(asked, whole);
	return number;
}

#define MANY 40 /* more than half as many as can ask at once */
static struct {
	pthread_t thread;
	CUdeviceptr at;
	_Atomic int result;
} many[MANY];

static void *allocate_one(void *index)
{
	uintptr_t i = (uintptr_t)index;

	CUDA(CtxSetCurrent(cuda_context));
	atomic_store(&many[i].result, cu.MemAlloc(&many[i].at, MiB(2)));
	return NULL;
}

/* Each tries again every second while no controller is there, and has its answer when there is room.  */
static void many_wait_without_a_controller(void)
{
	uint64_t begin;

	for (uintptr_t i = 0; i < MANY; i++) {
		atomic_store(&many[i].result, -1);
		thread_start(&many[i].thread, allocate_one, (void *)i);
	}
	for (int i = 0; i < MANY; i++)
		controller_noticed(AFFINODE_NOTIFY_ROOM, NULL);
	begin = test_now_ns();
	controller_stop();
	UNTIL(test_now_ns() - begin > 1300000000u);
	for (int i = 0; i < MANY; i++)
		CHECK_EQUAL(atomic_load(&many[i].result), -1);
	CUDA(MemFree(filler));
	for (int i = 0; i < MANY; i++) {
		thread_join(many[i].thread);
		CHECK_EQUAL(atomic_load(&many[i].result), CUDA_SUCCESS);
		CUDA(MemFree(many[i].at));
	}
	controller_start_again();
}

/* No controller for some twenty seconds, in which the waiting call looks again and again; then the next one.  */
static void miss_controller(void)
{
	controller_stop();
	for (int i = 0; i < 4; i++) {
		uint64_t begin = true_ns(CLOCK_MONOTONIC);

		atomic_fetch_add(&jumped_ns, 4900000000u);
		UNTIL(true_ns(CLOCK_MONOTONIC) - begin > 450000000u);
	}
	controller_start_again();
	controller_noticed(AFFINODE_NOTIFY_ROOM, NULL);
	CHECK_EQUAL(atomic_load(&result), -1);
}

int main(int argc, char **argv)
{
	pthread_t thread;
	uint32_t number;
	uint64_t begin;

	setenv("AFFINODE_SIM_MEMORY", "256MiB", 1);
	test_begin(argc, argv, 200); /* by its own clock, which jumps and runs */
	cuda_start();
	controller_accept();
	CUDA(MemAlloc(&got, MiB(2)));
	CUDA(MemFree(got));
	filler = cuda_fill(0);

	/* Denied: the program's own out-of-memory, and the request ends.  */
	number = ask(&thread, MiB(3));
	controller_answer_room(number, false);
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&result), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(controller_noticed(AFFINODE_NOTIFY_ROOM_END, NULL), number);

	/* Granted, but another was faster: asked again; then there is room.  */
	number = ask(&thread, MiB(4));
	controller_answer_room(number, true);
	uint32_t again = controller_noticed(AFFINODE_NOTIFY_ROOM, NULL);
	CHECK(again != number);
	CHECK_EQUAL(atomic_load(&result), -1);
	CUDA(MemFree(filler));
	controller_answer_room(again, true);
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&result), CUDA_SUCCESS);
	CHECK_EQUAL(controller_noticed(AFFINODE_NOTIFY_ROOM_END, NULL), number);
	CHECK_EQUAL(controller_noticed(AFFINODE_NOTIFY_ROOM_END, NULL), again);
	fill_pattern(got, MiB(4), 11);
	filler = cuda_fill(0);

	/* Interrupted while waiting for room.  */
	number = ask(&thread, MiB(4));
	controller_command(AFFINODE_COMMAND_CANCEL, 0);
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&result), CUDA_ERROR_DEVICE_UNAVAILABLE);

	/* Parked while it waits, resumed, and then served.  */
	CUdeviceptr before = got;
	number = ask(&thread, MiB(6));
	controller_park();
	controller_answer_room(number, true);
	PAGE_UNTIL(page.want == 1);
	CUDA(MemFree(filler));
	CHECK_RESUMES();
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&result), CUDA_SUCCESS);
	CHECK(holds_pattern(before, MiB(4), 11, 0));
	filler = cuda_fill(0);

	/* Promised and gone again many times, then no controller: that is another wait. The user is told, and can give
	 * up; the program's own handler is called and is back afterwards.  */
	struct sigaction ours = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART}, now;

	sigaction(SIGINT, &ours, NULL);
	begin_to_listen();
	number = ask(&thread, MiB(4));
	begin = test_now_ns();
	for (int i = 0; i < 45; i++) {
		controller_answer_room(number, true);
		number = controller_noticed(AFFINODE_NOTIFY_ROOM, NULL);
	}
	CHECK(test_now_ns() - begin > 1200000000u); /* the last ones at intervals, since the GPU may be held for seconds */
	controller_stop();
	UNTIL(was_told("waiting for GPU memory: no controller answers. Out of memory if none comes free in 30 s."));
	CHECK_EQUAL(atomic_load(&result), -1);
	CHECK_EQUAL(kill(getpid(), SIGINT), 0);
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&result), CUDA_ERROR_DEVICE_UNAVAILABLE);
	CHECK_EQUAL(atomic_load(&interrupts), 1);
	CHECK_EQUAL(sigaction(SIGINT, NULL, &now), 0);
	CHECK(now.sa_handler == on_interrupt);
	controller_start_again();
	controller_command(AFFINODE_COMMAND_CANCEL_END, 0);
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_NOTHING); /* so the other command was heard too */

	many_wait_without_a_controller();
	filler = cuda_fill(0);

	/* The controller goes while it waits and another comes: asked anew under the same number.  */
	number = ask(&thread, MiB(4));
	controller_drop();
	controller_accept();
	CHECK_EQUAL(controller_noticed(AFFINODE_NOTIFY_ROOM, NULL), number);
	/* The machine was stopped for a minute, so that the link is lost, too: no controller was missed for that long.  */
	atomic_fetch_add(&jumped_ns, 60000000000u);
	controller_drop();
	begin = test_now_ns();
	UNTIL(test_now_ns() - begin > 500000000u); /* it looks meanwhile */
	controller_accept();
	controller_noticed(AFFINODE_NOTIFY_ROOM, NULL);
	CHECK_EQUAL(atomic_load(&result), -1);
	/* One controller after another ends: only the time without the last counts.  */
	for (int i = 0; i < 2; i++)
		miss_controller();
	/* And no controller comes: it goes on waiting, and is tried again by itself when memory is freed.  */
	begin = test_now_ns();
	controller_stop();
	run_clock_faster();
	UNTIL(test_now_ns() - begin > 5000000000u);
	CHECK_EQUAL(atomic_load(&result), -1);
	CUDA(MemFree(filler));
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&result), CUDA_SUCCESS);
#ifndef SHIM_LINKED /* it takes long, once will do */
	/* None is freed: out of memory, but not for ever.  */
	filler = cuda_fill(0);
	atomic_store(&result, -1);
	thread_start(&thread, allocate, (void *)MiB(4));
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&result), CUDA_ERROR_OUT_OF_MEMORY);
	UNTIL(was_told("no GPU memory came free in 30 s, and no controller answers: out of memory."));
	/* That was once in all: the next are not kept waiting, until another controller was there.  */
	begin = true_ns(CLOCK_MONOTONIC);
	for (int i = 0; i < 20; i++)
		CHECK_EQUAL(cu.MemAlloc(&got, MiB(4)), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(true_ns(CLOCK_MONOTONIC) - begin < 30000000000u / FASTER); /* not one was */
	controller_start_again();
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_NOTHING); /* it was welcomed */
	controller_stop();
	begin = test_now_ns();
	atomic_store(&result, -1);
	thread_start(&thread, allocate, (void *)MiB(4));
	UNTIL(test_now_ns() - begin > 5000000000u);
	CHECK_EQUAL(atomic_load(&result), -1);
	CUDA(MemFree(filler));
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&result), CUDA_SUCCESS);
#endif
	CHECK(holds_pattern(before, MiB(4), 11, 0));
	return 0;
}
