/* Between mover.c (the thread and its queue) and the other files of the mover.  */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "base/monotonic_futex.h"
#include "host/chunk.h"
#include "mover/mover.h"

enum decision { UNDECIDED, COMMIT, ABORT };

/* Held while a move is under way, and by a thread that must keep one from beginning.  */
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

/* Never NULL.  */
extern const struct depth_moves *depth_moves;

void park(struct moved *moved);
void resume(struct moved *moved);

/* Takes the work's lock itself, again and again.  */
void spill(struct moved *moved);
void read_back(struct moved *moved);

/* End, on an idle GPU, what was freed while a park that came to nothing was reading it. The program does so itself
 * at its next free or allocation, but there may be none. False: not now.  */
bool free_what_is_left(void);

/* What is on its way at a time while memory is looked at, or released: 5 ms of copying at 50 GiB/s. Where memory is handed over neither
 * side may keep much of what the other waits for.  */
static inline size_t items_in_window(const struct move *move)
{
	return AFFINODE_WINDOW_BYTES / CHUNK_BYTES / (move_hands_over(move) ? 2 : 1);
}

/* Add the time since then to what a step has taken; the time now.  */
static inline uint64_t add_since(uint64_t *sum, uint64_t begin_ns)
{
	uint64_t now = clock_ns();

	*sum += now - begin_ns;
	return now;
}

void outcome_is(struct moved *moved, enum affinode_status status, enum reason reason);

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
