/* The GPUs' locks, taken by a process that resumes without a controller, so that two of them take turns.  */
#ifndef AFFINODE_GPU_LOCK_H
#define AFFINODE_GPU_LOCK_H

#include <stdbool.h>

/* All of this process's GPUs, or none; never blocks. Where no lock file can be had it succeeds: taking memory is all
 * or nothing at memory depth, so the lock only keeps two from failing in turn.  */
bool gpu_lock_all(void);
void gpu_unlock_all(void);

#endif
