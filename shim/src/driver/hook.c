#include "driver/hook.h"

#include <string.h>

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
