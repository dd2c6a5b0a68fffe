#pragma once

#include <stdbool.h>

/* A gated thunk for `real`, called `name` (which lives as long as the process); NULL: the pool is used up. `settles`: a copy or
 * fill whose name does not say that it is asynchronous.  */
void *thunk_for(void *real, int class_, bool wide, bool settles, const char *name);
