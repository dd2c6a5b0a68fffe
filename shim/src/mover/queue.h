/* Between mover.c (the thread and its queue), two_phase.c and exclusion.c.  */
#ifndef AFFINODE_MOVER_QUEUE_H
#define AFFINODE_MOVER_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "mover/mover.h"

enum decision { UNDECIDED, COMMIT, ABORT };

/* Held while a move is under way, and by those who must keep one from beginning.  */
extern pthread_mutex_t mover_work_lock;

struct mover_queue {
	pthread_mutex_t lock; /* guards all of these */
	pthread_cond_t changed;
	struct move next;
	_Atomic bool waits; /* read without it too */
	bool runs, outcome_waits;
	struct moved outcome;
	bool is_prepared;
	_Atomic int decision; /* about the move under way: enum decision; read without it too */
};
extern struct mover_queue mover_queue;

/* With the lock held: until something changes, `ns` at most.  */
void mover_wait_for_change(uint64_t ns);

/* Frees wait for the mover at a closed gate.  */
bool mover_has_holders(void);
int describe_holds(char *text, size_t size, int at);
#endif
