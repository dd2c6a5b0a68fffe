/* Pools of functions that stand before the driver's: each thunk is bound to one pointer and to what it does beside the call.
 *
 * Before INT_POOL and WIDE_POOL a file defines what a thunk does,
 *   static W call_int(const struct thunk_target *target, INT_PARAMETERS)
 *   static W call_wide(const struct thunk_target *target, WIDE_PARAMETERS)
 * and after them it binds thunks of `int_pool` and `wide_pool`.  */
#pragma once

#include <stddef.h>

#include "driver/call_signatures.h"

struct thunk_target {
	void *real;       /* the driver's pointer, or a hook */
	unsigned what;    /* the meaning is the pool's own */
	const char *name; /* lives as long as the process */
};

struct thunk_pool {
	struct thunk_target *targets;
	void *const *thunks;
	size_t count;
};

/* The thunk before `real` that does `what`, bound now if none was; NULL: all are taken.  */
void *thunk_bind(const struct thunk_pool *pool, void *real, unsigned what, const char *name);

/* M(hex digits) that many times: the thunk of that index, and its name in the table.  */
#define REPEAT_16(M, n)                                                                                             \
	M(n##0) M(n##1) M(n##2) M(n##3) M(n##4) M(n##5) M(n##6) M(n##7) M(n##8) M(n##9) M(n##a) M(n##b) M(n##c)      \
	M(n##d) M(n##e) M(n##f)
#define REPEAT_256(M, n)                                                                                            \
	REPEAT_16(M, n##0) REPEAT_16(M, n##1) REPEAT_16(M, n##2) REPEAT_16(M, n##3) REPEAT_16(M, n##4)               \
	REPEAT_16(M, n##5) REPEAT_16(M, n##6) REPEAT_16(M, n##7) REPEAT_16(M, n##8) REPEAT_16(M, n##9)               \
	REPEAT_16(M, n##a) REPEAT_16(M, n##b) REPEAT_16(M, n##c) REPEAT_16(M, n##d) REPEAT_16(M, n##e)               \
	REPEAT_16(M, n##f)
#define TIMES_16(M) REPEAT_16(M, 0x0)
#define TIMES_64(M) REPEAT_16(M, 0x0) REPEAT_16(M, 0x1) REPEAT_16(M, 0x2) REPEAT_16(M, 0x3)
/* For hundreds of names. Sanitizers take long over whole pools, and their tests need few.  */
#ifdef SMALL_POOLS
#define TIMES_256(M) TIMES_16(M)
#define TIMES_512(M) TIMES_64(M)
#define TIMES_1024(M) TIMES_64(M)
#else
#define TIMES_256(M) REPEAT_256(M, 0x0)
#define TIMES_512(M) REPEAT_256(M, 0x0) REPEAT_256(M, 0x1)
#define TIMES_1024(M) REPEAT_256(M, 0x0) REPEAT_256(M, 0x1) REPEAT_256(M, 0x2) REPEAT_256(M, 0x3)
#endif

#define ONE_MORE(n) +1
#define INT_NAME(n) (void *)int_thunk_##n,
#define WIDE_NAME(n) (void *)wide_thunk_##n,
#define INT_THUNK(n)                                             \
	static W int_thunk_##n(INT_PARAMETERS)                   \
	{                                                        \
		return call_int(&int_targets[n], INT_ARGUMENTS); \
	}
#define WIDE_THUNK(n)                                               \
	static W wide_thunk_##n(WIDE_PARAMETERS)                    \
	{                                                           \
		return call_wide(&wide_targets[n], WIDE_ARGUMENTS); \
	}

/* TIMES: one of the above. The wide shape carries floats, structs by value, and calls with up to 24 words on the stack.  */
#define INT_POOL(TIMES)                                             \
	static struct thunk_target int_targets[0 TIMES(ONE_MORE)];  \
	TIMES(INT_THUNK)                                            \
	static void *const int_thunks[] = {TIMES(INT_NAME)};        \
	static const struct thunk_pool int_pool = {int_targets, int_thunks, 0 TIMES(ONE_MORE)};
#define WIDE_POOL(TIMES)                                             \
	static struct thunk_target wide_targets[0 TIMES(ONE_MORE)];  \
	TIMES(WIDE_THUNK)                                            \
	static void *const wide_thunks[] = {TIMES(WIDE_NAME)};       \
	static const struct thunk_pool wide_pool = {wide_targets, wide_thunks, 0 TIMES(ONE_MORE)};
