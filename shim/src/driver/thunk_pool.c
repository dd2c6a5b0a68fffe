#include "driver/thunk_pool.h"

#include <pthread.h>
#include <string.h>

#include "base/per_process.h"
#include "driver/hook.h"

static OF_PROCESS pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;

void *thunk_bind(const struct thunk_pool *pool, void *real, unsigned what, const char *name)
{
	void *thunk = NULL;

	pthread_mutex_lock(&pools_lock);
	for (size_t i = 0; i < pool->count && !thunk; i++) {
		struct thunk_target *target = &pool->targets[i];

		if (!target->real) {
			target->what = what;
			target->name = name;
			__atomic_store_n(&target->real, real, __ATOMIC_RELEASE);
		}
		if (target->real == real && target->what == what)
			thunk = pool->thunks[i];
	}
	pthread_mutex_unlock(&pools_lock);
	return thunk;
}

void *hook_instance(struct hook *hook, void *real)
{
	return thunk_bind(&(struct thunk_pool){hook->targets, hook->thunks, HOOK_INSTANCES}, real, 0, NULL);
}

struct hook *hook_named(const struct hook_name *names, size_t count, const char *name, int version)
{
	for (size_t i = 0; i < count; i++) {
		const struct hook_name *known = &names[i];

		if ((known->version == 0) != (version == 0) || version < known->version)
			continue;
		if (strcmp(known->name, name) == 0)
			return known->hook;
	}
	return NULL;
}
