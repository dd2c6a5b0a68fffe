/* Between mover.c and its other files (queue.h), park.c and resume.c.  */
#ifndef AFFINODE_MOVING_H
#define AFFINODE_MOVING_H

#include "mover/mover.h"

/* Never NULL.  */
extern const struct depth_moves *depth_moves;

void park(struct moved *moved);
void resume(struct moved *moved);

/* Takes the work's lock itself, again and again.  */
void spill(struct moved *moved);

/* End, on an idle GPU, what was freed while a park that came to nothing was reading it. The program does so itself
 * at its next free or allocation, but there may be none. False: not now.  */
bool free_what_is_left(void);

/* Reasons that more than one of them gives.  */
#define MOVER_CALL_CAME "a CUDA call came while parking"
#define MOVER_GPU_COMPUTES "the GPU is still computing"

void outcome_is(struct moved *moved, enum affinode_status status, const char *text);

/* The controller took the move back.  */
bool mover_is_aborted(void);

/* Tell that the move is prepared, and wait at the closed gate for what becomes of it; true: carry it out.  */
bool mover_wait_for_commit(struct moved *moved);

/* While it is set the gate is open and the mover reads the application's memory: a thread that would take memory
 * away waits. Set and cleared at a closed gate, or when nothing is touched any more.  */
void mover_set_copying(bool copying);

/* Wait for every context's work at the closed gate, a short while at most; false: it is open again.  */
bool mover_synchronise_bounded(void);

/* Read the application's memory behind the closed gate; false: that took so long that the gate is open again.  */
bool mover_read_bounded(void (*read)(void *), void *data);

/* How many have stepped aside so far.  */
unsigned mover_steps_aside(void);

#endif
