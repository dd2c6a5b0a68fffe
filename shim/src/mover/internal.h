/* Between mover.c (the thread and its queue) and the other files of the mover.  */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "base/monotonic_futex.h"
#include "host/chunk.h"
#include "mover/mover.h"

enum decision { UNDECIDED, COMMIT, ABORT };

/* The mover holds it while it touches memory, and a thread that must keep the mover from that.  */
extern pthread_mutex_t mover_work_lock;

struct mover_queue {
	pthread_mutex_t lock; /* guards what follows; the two atomic members are read without it too */
	pthread_cond_t changed;
	struct move next;    /* the last move that was submitted */
	_Atomic bool waits;  /* the mover has not begun it */
	bool runs;           /* it was submitted, and has not ended */
	bool outcome_waits;  /* `outcome` was not taken */
	struct moved outcome;
	bool is_prepared;    /* it waits for a decision */
	_Atomic int decision; /* enum decision */
};
extern struct mover_queue mover_queue;

/* Wait `ns` at most for mover_queue.changed, with its lock held.  */
void mover_wait_for_change(uint64_t ns);

/* Whether frees wait for the mover at a closed gate.  */
bool mover_has_holders(void);
int describe_holds(char *text, size_t size, int at);

/* Those of memory depth alone until mover_set_depth; never NULL.  */
extern const struct depth_moves *depth_moves;

/* Called with mover_work_lock held.  */
void park(struct moved *moved);
void resume(struct moved *moved);

/* Have a process that has nothing which could be moved be parked all the same: it is to leave the GPU. False: it could not be, and `moved`
 * says why. And undo that, while its context has not left.  */
bool park_empty(struct moved *moved);
void resume_empty(void);

/* These take mover_work_lock themselves, batch by batch, so that frees come between.  */
void spill(struct moved *moved);
void read_back(struct moved *moved);
void hibernate(struct moved *moved);
void share(struct moved *moved);

/* Forget what a resident process has in packs for its next park, on disk or in host memory.  */
void forget_places(bool in_memory);

/* End blocks that were freed while a park read them that was then given up. Work that was submitted may still use them, so the GPU must be
 * idle; false: it is not. The program's next free or allocation ends them too, but there may be none.  */
bool free_what_is_left(void);

/* Chunks that are copied together, while the window before them is verified or released: 256 MiB, 5 ms at 50 GiB/s. Half of that where
 * memory is handed over, since each side then waits for what the other still has.  */
static inline size_t items_in_window(const struct move *move)
{
	return AFFINODE_WINDOW_BYTES / CHUNK_BYTES / (move_hands_over(move) ? 2 : 1);
}

/* Add the time since begin_ns to *sum, and return the time now.  */
static inline uint64_t add_since(uint64_t *sum, uint64_t begin_ns)
{
	uint64_t now = clock_ns();

	*sum += now - begin_ns;
	return now;
}

void outcome_is(struct moved *moved, enum affinode_status status, enum reason reason);

/* Whether the controller, or its loss, has ended the move under way.  */
bool mover_is_aborted(void);

/* Tell the controller that the move is prepared, and wait at the closed gate for its decision; true: carry the move out.  */
bool mover_wait_for_commit(struct moved *moved);

/* While it is set the gate is open and the mover reads the application's memory: a thread that would take memory
 * away waits. Set and cleared at a closed gate, or when nothing is touched any more.  */
void mover_set_copying(bool copying);

/* Wait for every context's work at the closed gate, a short while at most: 0, or a negative errno with the gate open again.  */
int mover_synchronise_bounded(void);

/* Read the application's memory behind the closed gate: 0, or -ETIMEDOUT if that took so long that the gate is open again.  */
int mover_read_bounded(void (*read)(void *), void *data);

/* How many have stepped aside so far.  */
unsigned mover_steps_aside(void);
