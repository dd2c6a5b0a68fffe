/* Context depth, as far as all parts of the shim have to know of it: whether this process may be parked that deep, and whether it
 * is. What is done about it stands in context_depth/.  */
#pragma once

#include <stdbool.h>

#include "base/reasons.h"

/* 0 in a build without context depth (make CONTEXT_DEPTH=0).  */
#ifndef AFFINODE_CONTEXT_DEPTH
#define AFFINODE_CONTEXT_DEPTH 1
#endif

/* Return whether AFFINODE_DEPTH=context was set at the first call, which is before any wrapper is handed out.  */
bool checkpoint_is_asked(void);

/* Tell the user, at the start, if context depth is asked for and was not built in.  */
void depth_say_if_left_out(void);

/* Return whether this process may be parked at context depth, as far as is known now.  */
bool checkpoint_is_possible(void);
void checkpoint_set_started(void);

/* Return whether the driver holds the process: then no call of the driver returns, not even the shim's.  */
bool checkpoint_is_out(void);
void checkpoint_set_out(bool out);

/* Keep the process from context depth for good, since something was done that the driver's checkpoint cannot take, or that the shim does
 * not see.  */
void checkpoint_refuse(enum reason why);

/* Return why the context stays on the GPU for good; NO_REASON if nothing was refused yet.  */
enum reason checkpoint_refusal(void);

/* Return whether there was, at the start, another GPU of the same kind on which this process may be resumed.  */
bool migration_is_possible(void);
void migration_set_possible(bool now);
