#include "driver/thunk_pool.h"

#include <pthread.h>

#include "base/per_process.h"

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
