/* Context depth, as the rest of the shim sees it. When the mover has parked the memory, the driver's own checkpoint of this process
 * takes what is left, the CUDA context, and the GPU no longer knows the process.
 *
 * Asked for by AFFINODE_DEPTH=context alone. Whether it is, and whether the process is off the GPU, is in state/depth.h; the mover
 * is given what it calls at context_depth_start (struct depth_moves). `make CONTEXT_DEPTH=0` leaves this folder out.  */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "driver/entry_point.h"
#include "state/depth.h"

#if AFFINODE_CONTEXT_DEPTH

/* On the application's thread, at its start: after driver_resolve, and when its devices are known.  */
void context_depth_wrap_own_calls(void);
void context_depth_start(void);

/* What is done right around some driver calls, below gate and hooks, for every caller: `real`, or what stands before it. `name`
 * with any version suffix or none; `wide` as in thunk_for.  */
void *around_for(const char *name, bool wide, void *real);

/* What to put before the driver's `real` where context depth is asked for; `real` itself where nothing has to be. `version` as in
 * wrap_entry_point.  */
void *books_below(const struct entry_point *entry, int version, void *real);

/* What to put before a hook that calls the driver where no gate holds the process on the GPU.  */
void *books_above(const struct entry_point *entry, void *hook);

/* False: the name is none of NVML's, which we stand before too. Else what to answer dlsym with (dlsym.S).  */
bool nvml_answer(void *handle, const char *name, uintptr_t *answer);

/* In an exit handler of a process whose context is off the GPU: bring it back if there is room, so that the driver's own
 * destructors find it. Otherwise see to it that the process ends with `status` all the same, once its exit makes no progress
 * any more.  */
void leaving_begin(int status);

void context_depth_begin_again(void);

#else

static inline void context_depth_wrap_own_calls(void)
{
}

static inline void context_depth_start(void)
{
}

static inline void *around_for(const char *name, bool wide, void *real)
{
	(void)name, (void)wide;
	return real;
}

static inline void *books_below(const struct entry_point *entry, int version, void *real)
{
	(void)entry, (void)version;
	return real;
}

static inline void *books_above(const struct entry_point *entry, void *hook)
{
	(void)entry;
	return hook;
}

static inline bool nvml_answer(void *handle, const char *name, uintptr_t *answer)
{
	(void)handle, (void)name, (void)answer;
	return false;
}

static inline void leaving_begin(int status)
{
	(void)status;
}

static inline void context_depth_begin_again(void)
{
}

#endif
