#ifndef AFFINODE_CALL_THUNKS_H
#define AFFINODE_CALL_THUNKS_H

#include <stdbool.h>

/* A gated thunk for `real`, called `name` (which lives as long as the process), `settles`: for a copy or fill whose name does not say that it is asynchronous; NULL
 * when the pool is used up.  */
void *thunk_for(void *real, int class_, bool wide, bool settles, const char *name);

#endif
