/* Hand-written hooks: functions that do more than pass the gate. A hook may stand before several driver pointers at
 * once (versions, the per-thread variants, two copies of the driver), so each has a few instances, one a pointer.  */
#pragma once

#include <pthread.h>

#include <stddef.h>

#include "driver/cuda_types.h"
#include "driver/thunk_pool.h"

#define HOOK_INSTANCES 4

struct hook {
	struct thunk_target targets[HOOK_INSTANCES];
	void *const thunks[HOOK_INSTANCES];
};

struct hook_name {
	const char *name;
	int version;
	struct hook *hook;
};

/* The hook of a list for this name, as hook_for (hook_names.h); and its instance with `real` behind it, NULL: all
 * are taken.  */
struct hook *hook_named(const struct hook_name *names, size_t count, const char *name, int version);
void *hook_instance(struct hook *hook, void *real);

/* A thread that is being cancelled ends after the hook: a hook holds locks that would never be released.  */
static inline int cancellation_off(void)
{
	int before = PTHREAD_CANCEL_ENABLE;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}

static inline void cancellation_restore(const int *before)
{
	pthread_setcancelstate(*before, NULL);
}

#define WITHOUT_CANCELLATION() \
	const int cancellation_before __attribute__((cleanup(cancellation_restore), unused)) = cancellation_off()

#define BARE(...) __VA_ARGS__ /* what is in parentheses, without them */

/* HOOK(name, (parameters), arguments…) after `static CUresult on_name(void *real, parameters)`.  */
#define HOOK_INSTANCE(name, n, parameters, ...)                                                                     \
	static CUresult name##_at_##n parameters                                                                    \
	{                                                                                                           \
		WITHOUT_CANCELLATION();                                                                             \
		return on_##name(hook_##name.targets[n].real, __VA_ARGS__);                                         \
	}
#define HOOK(name, parameters, ...)                                                                                 \
	static CUresult name##_at_0 parameters;                                                                     \
	static CUresult name##_at_1 parameters;                                                                     \
	static CUresult name##_at_2 parameters;                                                                     \
	static CUresult name##_at_3 parameters;                                                                     \
	struct hook hook_##name = {.thunks = {(void *)name##_at_0, (void *)name##_at_1, (void *)name##_at_2,        \
					      (void *)name##_at_3}};                                                \
	HOOK_INSTANCE(name, 0, parameters, __VA_ARGS__)                                                             \
	HOOK_INSTANCE(name, 1, parameters, __VA_ARGS__)                                                             \
	HOOK_INSTANCE(name, 2, parameters, __VA_ARGS__)                                                             \
	HOOK_INSTANCE(name, 3, parameters, __VA_ARGS__)
