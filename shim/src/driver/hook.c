#include "driver/hook.h"

#include <pthread.h>
#include <string.h>

#include "base/per_process.h"

static OF_PROCESS pthread_mutex_t hooks_lock = PTHREAD_MUTEX_INITIALIZER;

void *hook_instance(struct hook *hook, void *real)
{
	void *thunk = NULL;

	pthread_mutex_lock(&hooks_lock);
	for (int i = 0; i < HOOK_INSTANCES && !thunk; i++) {
		if (!hook->reals[i])
			__atomic_store_n(&hook->reals[i], real, __ATOMIC_RELEASE);
		if (hook->reals[i] == real)
			thunk = hook->thunks[i];
	}
	pthread_mutex_unlock(&hooks_lock);
	return thunk;
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
