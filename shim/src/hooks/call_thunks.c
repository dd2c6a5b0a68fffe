/* Gated thunks: a pool of functions, one bound to each (driver pointer, class) that a caller ever resolved.
 *
 * Two shapes cover the driver's whole interface without assembly. INT forwards eleven words, as many as any prototype
 * of integers and pointers has; more words than the callee takes are harmless on both architectures. WIDE also carries
 * every floating-point argument register and 24 stack words: by-value structs, floats, sixteen-argument calls, and
 * names this build has never heard of.  */
#include <pthread.h>
#include <string.h>

#include "driver/call_signatures.h"
#include "base/per_process.h"
#include "driver/real_driver.h"
#include "gate/gate.h"
#include "gpu/contexts.h"
#include "hooks/call_thunks.h"
#include "memory/backed.h"

#ifdef SMALL_POOLS
#define INT_THUNKS LARGE_POOL
#define WIDE_THUNKS 16
#define REPEAT_INT(M) REPEAT_LARGE_POOL(M)
#define REPEAT_WIDE(M) REPEAT_16(M, 0x0)
#else
#define INT_THUNKS 1024
#define WIDE_THUNKS 256
#define REPEAT_INT(M) REPEAT_256(M, 0x0) REPEAT_256(M, 0x1) REPEAT_256(M, 0x2) REPEAT_256(M, 0x3)
#define REPEAT_WIDE(M) REPEAT_256(M, 0x0)
#endif

struct target {
	void *real;
	int class_;
	const char *name;
	bool settles; /* a copy or fill that is not asynchronous by its name */
};

static struct target int_targets[INT_THUNKS];
static struct target wide_targets[WIDE_THUNKS];

/* The promise of SYNC_MEMOPS: the call returns when its work is done, whatever it copies.  */
static __attribute__((noinline)) void settle(CUresult result)
{
	if (result != CUDA_SUCCESS || captures_open())
		return;
	driver.cuStreamSynchronize(CU_STREAM_LEGACY);
	driver.cuStreamSynchronize(CU_STREAM_PER_THREAD);
}

static inline __attribute__((always_inline)) W call_int(const struct target *target, INT_PARAMETERS)
{
	GATE_PASS(pass);
	CUresult refused = gate_enter_named(&pass, target->class_, &target->name);

	W result;

	if (unlikely(refused != CUDA_SUCCESS))
		return (W)refused;
	result = ((int_fn)target->real)(INT_ARGUMENTS);
	if (unlikely(target->settles) && blocks_have_sync_memops())
		settle((CUresult)result);
	return result;
}

static inline __attribute__((always_inline)) W call_wide(const struct target *target, WIDE_PARAMETERS)
{
	GATE_PASS(pass);
	CUresult refused = gate_enter_named(&pass, target->class_, &target->name);

	if (unlikely(refused != CUDA_SUCCESS))
		return (W)refused;
	return ((wide_fn)target->real)(WIDE_ARGUMENTS);
}

REPEAT_INT(INT_THUNK)
REPEAT_WIDE(WIDE_THUNK)

#define INT_NAME(n) int_thunk_##n,
#define WIDE_NAME(n) wide_thunk_##n,
static const int_fn int_thunks[INT_THUNKS] = {REPEAT_INT(INT_NAME)};
static const wide_fn wide_thunks[WIDE_THUNKS] = {REPEAT_WIDE(WIDE_NAME)};

static OF_PROCESS pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;

/* The index bound to (real, class_), bound now if it was not; -1 when all are taken.  */
static int bind_target(struct target *targets, int count, void *real, int class_, bool settles, const char *name)
{
	for (int i = 0; i < count; i++) {
		if (targets[i].real == real && targets[i].class_ == class_)
			return i;
		if (!targets[i].real) {
			targets[i].class_ = class_;
			targets[i].settles = settles;
			targets[i].name = name;
			__atomic_store_n(&targets[i].real, real, __ATOMIC_RELEASE);
			return i;
		}
	}
	return -1;
}

void *thunk_for(void *real, int class_, bool wide, bool settles, const char *name)
{
	void *thunk = NULL;
	int i;

	pthread_mutex_lock(&pool_lock);
	if (wide) {
		i = bind_target(wide_targets, WIDE_THUNKS, real, class_, settles, name);
		if (i >= 0)
			memcpy(&thunk, &wide_thunks[i], sizeof(thunk));
	} else {
		i = bind_target(int_targets, INT_THUNKS, real, class_, settles, name);
		if (i >= 0)
			memcpy(&thunk, &int_thunks[i], sizeof(thunk));
	}
	pthread_mutex_unlock(&pool_lock);
	return thunk;
}
