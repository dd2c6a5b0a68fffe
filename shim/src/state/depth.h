/* Context depth, as far as all parts of the shim have to know of it: whether this process may be parked that deep, and whether it
 * is. What is done about it stands in context_depth/.  */
#pragma once

#include <stdbool.h>

#include "base/reasons.h"

/* 0: built without (make CONTEXT_DEPTH=0).  */
#ifndef AFFINODE_CONTEXT_DEPTH
#define AFFINODE_CONTEXT_DEPTH 1
#endif

/* AFFINODE_DEPTH=context: decided at the first look, before any wrapper is handed out.  */
bool checkpoint_is_asked(void);

/* At the start: tell the user if it is asked for and was not built in.  */
void depth_say_if_left_out(void);

/* Whether this process may be parked that deep, as far as is known now.  */
bool checkpoint_is_possible(void);
void checkpoint_set_started(void);

/* The driver holds the process: no call of the driver comes back, ours neither.  */
bool checkpoint_is_out(void);
void checkpoint_set_out(bool out);

/* Something was done that the driver's checkpoint does not bear, or the shim cannot see through: never, from now on.  */
void checkpoint_refuse(enum reason why);

/* Why it stays on the GPU for good; NO_REASON: not yet.  */
enum reason checkpoint_refusal(void);

/* Whether there is another GPU of the same kind that this process may come back on, as of its start; if not, false.  */
bool migration_is_possible(void);
void migration_set_possible(bool now);
