/* A process that is restored from a checkpoint may find an earlier clock than it had: it looks for a controller as before, is
 * parked, and its page is of the new clock.  */
#include <sys/syscall.h>
#include <time.h>

#include "harness.h"

#define BACK_NS 1000000000000u /* as much as the clock of this test is ahead at first */
#define BYTES MiB(8)

static _Atomic uint64_t ahead_ns = BACK_NS;

/* For the shim, too.  */
__attribute__((no_sanitize("thread", "address"))) int clock_gettime(clockid_t clock, struct timespec *now)
{
	long error = syscall(SYS_clock_gettime, clock, now);

	if (!error && clock == CLOCK_MONOTONIC)
		now->tv_sec += (time_t)(atomic_load(&ahead_ns) / 1000000000u);
	return (int)error;
}

static bool is_of_new_clock(struct affinode_page page)
{
	return page.heartbeat_ns <= test_now_ns() && page.state_since_ns <= page.heartbeat_ns &&
	       page.last_activity_ns <= page.heartbeat_ns;
}

int main(int argc, char **argv)
{
	CUdeviceptr block;

	test_begin(argc, argv, 60);
	cuda_start();
	controller_accept();
	block = cuda_block(BYTES, 7);

	/* With a controller: the link stays, and the page is sampled.  */
	atomic_store(&ahead_ns, BACK_NS / 2);
	PAGE_UNTIL(is_of_new_clock(page));
	CHECK(controller_pump());

	/* While none is there, and the next look for one is to be at a moment of the old clock.  */
	controller_command(AFFINODE_COMMAND_CANCEL, 5000000000u);
	PAGE_UNTIL(page.flags & AFFINODE_PAGE_CANCELLING);
	controller_stop();
	atomic_store(&ahead_ns, 0);
	controller_start_again();
	PAGE_UNTIL(is_of_new_clock(page));
	PAGE_UNTIL(!(page.flags & AFFINODE_PAGE_CANCELLING)); /* for no longer than was said */
	controller_park();
	CHECK_RESUMES();
	CHECK(holds_pattern(block, BYTES, 7, 0));
	return 0;
}
