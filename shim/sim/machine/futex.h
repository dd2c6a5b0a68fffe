/* Sleeping on a word that other processes may change.  */
#pragma once

#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Returns when woken, when the word is not `value`, after the time-out (ms, 0: none), or for no reason.  */
static inline void futex_wait(uint32_t *word, uint32_t value, unsigned timeout_ms)
{
	struct timespec timeout = {timeout_ms / 1000, (long)(timeout_ms % 1000) * 1000000};

	syscall(SYS_futex, word, FUTEX_WAIT, value, timeout_ms ? &timeout : NULL, NULL, 0);
}

static inline void futex_wake(uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
