/* CLOCK_MONOTONIC in nanoseconds, and futex(2) on it.  */
#pragma once

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MS_NS 1000000ull
#define S_NS 1000000000ull

static inline uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * S_NS + (uint64_t)t.tv_nsec;
}

static inline void clock_sleep_ns(uint64_t ns)
{
	struct timespec t = {(time_t)(ns / S_NS), (long)(ns % S_NS)};

	nanosleep(&t, NULL);
}

/* Sleep while *word is `value`, `ns` at most. Any signal ends the sleep early: callers look again.  */
static inline void futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t ns)
{
	struct timespec t = {(time_t)(ns / S_NS), (long)(ns % S_NS)};

	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &t, NULL, 0);
}

static inline void futex_wake_all(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, NULL, 0);
}
