/* The driver holds every call of a process that is off the GPU, those of its own destructors too, and a call that never
 * comes back would keep the process for ever. What is reached through our wrappers is answered at once (the process is
 * dying); this is for what is not.  */
#define _GNU_SOURCE
#include "context_depth/context_depth.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/monotonic_futex.h"
#include "base/own_thread.h"
#include "base/text_file.h"
#include "context_depth/bookkeeping_gate.h"
#include "context_depth/internal.h"
#include "gpu/gpu_lock.h"
#include "mover/mover.h"

#define SEIZE_NS (2 * S_NS)
#define LOOK_EVERY_NS (100 * MS_NS)
#define STUCK_LOOKS 20 /* two seconds without a step: the driver does not come back */
#define PLACE_LOOKS 50 /* nor from where it was found each time for five, although signals interrupt it there */
#define FLUSH_NS S_NS

static int exit_status;
static pid_t exiting_thread;

/* How often the exiting thread has slept and been interrupted: any step it makes changes it. 0: it cannot be read.  */
static unsigned long long steps_made(void)
{
	unsigned long long total = 0, n;
	char path[64], line[128];
	FILE *status;

	snprintf(path, sizeof(path), "/proc/self/task/%d/status", (int)exiting_thread);
	status = fopen(path, "re");
	while (status && fgets(line, sizeof(line), status))
		if (sscanf(line, "voluntary_ctxt_switches: %llu", &n) == 1 ||
		    sscanf(line, "nonvoluntary_ctxt_switches: %llu", &n) == 1)
			total += n + 1;
	if (status)
		fclose(status);
	return total;
}

/* Return whether the thread sleeps: one that runs makes steps between two looks.  */
static bool is_asleep(void)
{
	char path[64], text[512], state = 'R';
	const char *end;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)exiting_thread);
	if (text_read(path, text, sizeof(text)) < 0)
		return true;
	end = strrchr(text, ')');
	if (end && end[1] == ' ')
		state = end[2];
	return state == 'S' || state == 'D';
}

/* Where in the kernel the thread waits; zeros if that is nowhere that a driver holds a call.  */
struct place {
	unsigned long long what, stack, code;
};

/* Return whether the system call is a wait. Reading and writing are none: a process that writes a long file at its end is found
 * at one place, too.  */
static bool is_a_wait(long call)
{
#ifdef SYS_poll
	if (call == SYS_poll)
		return true;
#endif
	return call == SYS_futex || call == SYS_ppoll || call == SYS_ioctl || call == SYS_restart_syscall;
}

static struct place place_now(void)
{
	struct place place = {0, 0, 0};
	char path[64], text[256];
	long number;

	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", (int)exiting_thread);
	if (text_read(path, text, sizeof(text)) <= 0 ||
	    sscanf(text, "%ld %llx %*x %*x %*x %*x %*x %llx %llx", &number, &place.what, &place.stack, &place.code) != 4 ||
	    !is_a_wait(number))
		place = (struct place){0, 0, 0};
	return place;
}

/* Look once more, and return how often the thread was found waiting at this place since it was found at another. If it is found
 * running, nothing is concluded: it may be on its way into the same wait again, after a signal.  */
static unsigned looks_in_place(void)
{
	static struct place before;
	static unsigned looks;
	struct place now = place_now();

	if (!is_asleep())
		return looks;
	looks = now.code && memcmp(&now, &before, sizeof(now)) == 0 ? looks + 1 : 0;
	before = now;
	return looks;
}

static void *leave(void *unused)
{
	(void)unused;
	clock_sleep_ns(FLUSH_NS);
	_exit(exit_status);
	return NULL;
}

static void start(void *(*body)(void *))
{
	if (thread_begin(body, NULL) != 0) {
		fflush(NULL); /* what exit would still have done */
		_exit(exit_status);
	}
}

/* Return whether the driver holds the process, or is about to: its checkpoint takes seconds for memory that only it can move.  */
static bool is_held(void)
{
	return checkpoint_is_out() || books_are_closed();
}

/* End the process once its exit makes no progress: flush what exit would still have flushed, and have another thread end the
 * process if that hangs.  */
static void *watch(void *unused)
{
	unsigned long long before = 0;
	unsigned stuck = 0;

	(void)unused;
	while (stuck < STUCK_LOOKS && (!is_held() || looks_in_place() < PLACE_LOOKS)) {
		unsigned long long now = steps_made();

		stuck = is_held() && now == before && is_asleep() ? stuck + 1 : 0;
		before = now;
		clock_sleep_ns(LOOK_EVERY_NS);
	}
	log_line("exit does not come back from the driver: leaving with status %d", exit_status);
	start(leave);
	fflush(NULL);
	_exit(exit_status);
	return NULL;
}

void leaving_begin(int status)
{
	static _Atomic bool begun;
	char why[AFFINODE_TEXT_SIZE];
	bool back = false;

	if (!is_held() || atomic_exchange(&begun, true))
		return;
	if (mover_seize(SEIZE_NS)) {
		back = checkpoint_in(NULL, why, sizeof(why)) == AFFINODE_OK;
		gpu_unlock_all();
		mover_let_go();
	}
	if (back)
		return;
	exit_status = status;
	exiting_thread = (pid_t)syscall(SYS_gettid);
	start(watch);
}
