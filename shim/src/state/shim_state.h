/* What state the shim is in: off or on, where its process's memory is, whether it may be parked. The page shows it.  */
#pragma once

#include <stdbool.h>

#include "protocol.h"

#define AFFINODE_SHIM_VERSION "0.1.0"

/* Return whether AFFINODE_DISABLE is set: then the shim hands out the driver's own pointers and does nothing else.  */
bool shim_is_disabled(void);

/* Return whether the shim runs: cuInit succeeded in this process (not in its parent) and the threads are up.  */
bool shim_is_on(void);
void shim_set_on(bool now);

enum affinode_state shim_state(void);
bool shim_is_parked(void); /* parked or queued */

/* Change the state from `from` to `to`, and tell page and link. Return false if it was another.  */
bool shim_move_state(enum affinode_state from, enum affinode_state to);

/* Set the state at the start, and in the child of a fork, without telling the controller.  */
void shim_begin_state(enum affinode_state now);

/* Never park this process from now on, since moving became unsafe; the process runs on.  */
void shim_give_up_parking(const char *why);
bool shim_is_unparkable(void);

/* Have `handler` called at exit, before the exit handlers that are registered by now. Exit handlers run last in, first out;
 * one registered at each park runs before those of libraries loaded since the last one, which may call CUDA.  */
void shim_register_exit(void);
/* Have `in_child` called in the child of a fork. A fork waits while a registration is under way (hold, release): glibc's lock, which
 * the registration holds, would be held in the child for good, and the child's exit would wait for it.  */
void shim_register_fork(void (*in_child)(void));
void shim_hold_registration(void);
void shim_release_registration(void);
void shim_set_exit_handler(void (*handler)(int status, void *unused));
