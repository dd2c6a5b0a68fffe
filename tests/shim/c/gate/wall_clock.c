/* Nothing waits by the time of day, which may be set back by hours while a call waits.  */
#include <sys/syscall.h>
#include <time.h>

#include "harness.h"

static CUdeviceptr block;

/* For the shim, too: what it reckons from this is an hour too late for the kernel's own clock.  */
__attribute__((no_sanitize("thread", "address"))) int clock_gettime(clockid_t clock, struct timespec *now)
{
	int result = (int)syscall(SYS_clock_gettime, clock, now);

	if (clock == CLOCK_REALTIME)
		now->tv_sec += 3600;
	return result;
}

static void *use(void *unused)
{
	CUDA(CtxSetCurrent(cuda_context));
	CHECK_EQUAL(launch_add(NULL, block, MiB(4), 1), CUDA_SUCCESS);
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	uint32_t park;

	cuda_begin(argc, argv, 30);
	block = cuda_block(MiB(4), 7);
	do
		park = controller_command(AFFINODE_COMMAND_PARK, AFFINODE_MOVE_PREPARE);
	while (!controller_prepared(park));
	/* The controller is silent: the shim itself lets the call through.  */
	thread_start(&thread, use, NULL);
	thread_join(thread);
	CHECK_EQUAL(controller_reply(park).status, AFFINODE_REVOKED);
	CHECK(holds_pattern(block, MiB(4), 7, 1));
	return 0;
}
