/* What goes wrong on demand. AFFINODE_SIM_FAULTS="name:what:nth[+],…" strikes the nth call of `name` in this process
 * (counted from 1; with `+` every call from the nth on). Names are those that cuGetProcAddress is asked, without version
 * ("cuMemCreate:OUT_OF_MEMORY:3"); `*` is any call. What:
 *
 *   an error's name or number   the call returns it before it does anything
 *   KILL                        the process dies there, by SIGKILL
 *   CORRUPT[=bytes]             a copy or a fill leaves one wrong bit in the middle of what it writes; only those of at
 *                               least so many bytes are counted
 *   FAIL                        the call succeeds; what it submitted fails when it runs, and its context with it; only
 *                               calls that submit work are counted
 *   LATE                        what the call submits runs LATE_MS later than it would; only such calls are counted
 *   TAKE=bytes                  a process that is not simulated takes that much more of every GPU, or all that is free;
 *                               TAKE=0: it ends. No process's memory is taken away
 *   HOLD                        the call waits until the board changes
 *   STAY                        a restore succeeds, and takes no notice of the GPUs that it was to go to; cuda-python's
 *                               tests (cuda_core/tests/test_checkpoint.py) allow for drivers that do so
 *
 * Armed while the program runs through a board (fault_board.h).  */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "driver/sim_cuda.h"

/* Whether STAY struck the call that this thread makes.  */
bool faults_stay(void);

#define LATE_MS 100
enum fault_effect { FAULT_NONE, FAULT_CORRUPT, FAULT_FAIL, FAULT_LATE };

/* CUDA_SUCCESS, or the error that this call of `name` is to return.  */
CUresult faults_next(const char *name);
/* What befalls the operation, of so many bytes, that the thread's call submits.  */
enum fault_effect faults_effect(uint64_t bytes);
/* For the board: host memory was registered, or unregistered (negative).  */
void faults_note_registered(int64_t bytes);
