/* The shim's life: off, on, residency, the end. State lives here; the page shows it.  */
#ifndef AFFINODE_SHIM_H
#define AFFINODE_SHIM_H

#include <stdbool.h>

#include "protocol.h"

#define AFFINODE_SHIM_VERSION "0.1.0"

/* AFFINODE_DISABLE is set: hand out the driver's own pointers and do nothing.  */
bool shim_is_disabled(void);

/* Running: cuInit succeeded in this process (not in its parent) and the threads are up.  */
bool shim_is_on(void);

/* Called when the first entry point is looked up: forks are seen from now on.  */
void shim_prepare(void);

/* Called by the cuInit hook, after the real call.  */
void shim_start(void);

enum affinode_state shim_state(void);
bool shim_is_parked(void); /* parked or queued */

/* Move to `to` if the state is `from`; tells page and link. False: it was another.  */
bool shim_move_state(enum affinode_state from, enum affinode_state to);

/* Something made moving unsafe for good: run on, never park.  */
void shim_give_up_parking(const char *why);
bool shim_is_unparkable(void);
bool shim_is_simulated(void);
void shim_set_simulated(void);

/* The process is about to end: whoever waits gets CUDA_ERROR_DEINITIALIZED.  */
void shim_set_dying(void);
void shim_register_exit(void);

#endif
