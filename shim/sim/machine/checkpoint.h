/* The driver's checkpoint of processes, after what was measured of the real one: Lock waits for work and closes the gate
 * that every call passes; Checkpoint takes the process off the GPU; Restore needs its room again and loses the process
 * when there is none; Unlock opens.  */
#pragma once

#include <stdbool.h>

#include "driver/sim_cuda.h"
#include "machine/machine.h"

enum checkpoint_operation { CHECKPOINT_LOCK = 1, CHECKPOINT_SAVE, CHECKPOINT_RESTORE, CHECKPOINT_UNLOCK };

/* Whether calls must wait now; cheap.  */
bool checkpoint_closed(void);
void checkpoint_wait_open(void);
/* Start the thread that serves requests, once; at the first context.  */
CUresult checkpoint_serve(void);
/* This process's record, taken anew if an image was made of the process at the checkpoint and it was woken from that.  */
struct sim_process *checkpoint_own_record(void);
/* Carry out a request; by the process's service thread, or by the caller for a process that has no contexts.  */
CUresult checkpoint_perform(struct sim_process *process, enum checkpoint_operation operation, unsigned timeout_ms);
