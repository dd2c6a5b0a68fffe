/* What is done right around some driver calls, below gate and hooks, whoever makes them.  */
#ifndef AFFINODE_AROUND_H
#define AFFINODE_AROUND_H

#include <stdbool.h>

/* `real`, or what stands before it. `name` with any version suffix or none; `wide` as in thunk_for.  */
void *around_for(const char *name, bool wide, void *real);

/* The shim's own allocations go the same way. After driver_resolve.  */
void around_own_calls(void);

void around_reset_in_child(void);

#endif
