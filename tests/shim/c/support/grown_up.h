/* For a program that is to be parked at context depth without being three seconds old first (context_depth/leave_gpu.c): for it CUDA
 * begins long ago. The three seconds are for other processes, so it is to be alone on its GPU. Included once.  */
#pragma once

#include <sys/syscall.h>
#include <time.h>

#include "harness.h"

/* What this thread does was done so long ago.  */
static __thread time_t behind_s;

/* The shim's clock, too.  */
__attribute__((no_sanitize("thread", "address"))) int clock_gettime(clockid_t clock, struct timespec *now)
{
	long failed = syscall(SYS_clock_gettime, clock, now);

	if (!failed && clock == CLOCK_MONOTONIC)
		now->tv_sec -= behind_s;
	return (int)failed;
}

__attribute__((unused)) static void cuda_start_grown_up(void)
{
	behind_s = 60;
	cuda_start();
	behind_s = 0;
}

/* The same with no context yet.  */
__attribute__((unused)) static void init_grown_up(void)
{
	behind_s = 60;
	cuda_load();
	CUDA(Init(0));
	behind_s = 0;
}
