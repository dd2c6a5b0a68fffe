/* What goes wrong on demand. AFFINODE_SIM_FAULTS="name:what:nth[+],…" strikes the nth call of `name` in this process
 * (counted from 1; with `+` every call from the nth on). Names are those that cuGetProcAddress is asked, without version
 * ("cuMemCreate:OUT_OF_MEMORY:3"); `*` is any call. What:
 *
 *   an error's name or number   the call returns it before it does anything
 *   KILL                        the process dies there, by SIGKILL
 *   CORRUPT                     a copy or a fill leaves one wrong bit in the middle of what it writes
 *   FAIL                        the call succeeds; what it submitted fails when it runs, and its context with it
 *   TAKE=bytes                  a process that is not simulated takes that much more of every GPU, or all that is free;
 *                               TAKE=0: it ends. Nobody's memory is taken away
 *   HOLD                        the call waits until the board changes
 *
 * A test that arms faults while the program runs has a board: a file of one page, named by AFFINODE_SIM_FAULT_BOARD and
 * mapped by both. It may be in the program itself.  */
#ifndef SIM_FAULTS_H
#define SIM_FAULTS_H

#include <stdint.h>

#include "sim_cuda.h"

#define SIM_FAULT_BOARD_SIZE 4096u

/* The text counts when `generation` was raised after it was written; calls are then counted from zero again.  */
struct sim_fault_board {
	uint32_t generation;
	uint32_t calls;      /* calls of any name since, by all processes of the board */
	uint32_t met;        /* faults that struck since */
	uint32_t held;       /* calls that wait now */
	char struck[64];     /* name of the call that a fault struck last */
	char text[2048];
};

enum fault_effect { FAULT_NONE, FAULT_CORRUPT, FAULT_FAIL };

/* CUDA_SUCCESS, or the error that this call of `name` is to return.  */
CUresult faults_next(const char *name);
/* What the thread's call does to the operation that it submits.  */
enum fault_effect faults_effect(void);

#endif
