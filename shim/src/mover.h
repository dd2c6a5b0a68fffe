/* The mover: a thread that copies a process's device memory out and in. It alone parks and resumes.  */
#ifndef AFFINODE_MOVER_H
#define AFFINODE_MOVER_H

#include <stdbool.h>
#include <stdint.h>

#include "gate.h"
#include "protocol.h"

struct move {
	enum affinode_command_kind command; /* PARK or RESUME */
	uint32_t epoch;
	uint64_t deadline_ns; /* not to be begun after this; 0: none */
	bool alone;           /* resumed without a controller: look for room first, under the GPUs' locks */
};

/* What became of a move.  */
struct moved {
	struct move move;
	enum affinode_status status;
	uint64_t bytes;
	uint64_t duration_ns;
	char text[AFFINODE_TEXT_SIZE];
};

/* Start the thread; 0 or a negative errno.  */
int mover_start(void);

/* Hand over a move; -EBUSY while another one is under way.  */
int mover_submit(const struct move *move);

/* The last move's outcome, once; false: nothing new. Polled by the link thread, which is woken for it.  */
bool mover_take_outcome(struct moved *moved);

/* When a bounded wait for the GPU has to be given up, 0: none; and giving it up (opens the gate): false, it had ended.
 * The move itself ends only when the GPU's work does.  */
uint64_t mover_wait_deadline_ns(void);
bool mover_revoke_wait(void);

/* Free doomed blocks if the mover is not at work.  */
void mover_reap(void);

/* Come inside the gate for a free or, while it is closed, keep the mover from working: true, let it go afterwards. What
 * it does now is waited for, unless it opens the gate again before it is done.  */
bool mover_hold(struct gate_pass *pass);
void mover_let_go(void);

/* Wait until the mover has let go, `ns` at most; it stops between pieces once the process is dying.  */
void mover_quiesce(uint64_t ns);

void mover_reset_in_child(void);

#endif
