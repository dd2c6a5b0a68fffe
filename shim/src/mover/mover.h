/* The mover: a thread that copies a process's device memory out and in. It alone parks and resumes.  */
#ifndef AFFINODE_MOVER_H
#define AFFINODE_MOVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gate/gate.h"
#include "protocol.h"

struct move {
	enum affinode_command_kind command; /* PARK, RESUME, SPILL or READ_BACK */
	uint32_t epoch;
	uint64_t deadline_ns; /* not to be begun after this; 0: none */
	uint64_t flags;       /* enum affinode_move_flags */
	bool alone;           /* RESUME: without a controller, holding the GPUs' locks meanwhile */
	bool prepare;         /* in two steps (protocol.h) */
	bool to_context;      /* PARK: at context depth */
	bool preempts;        /* PARK: although the application is at work */
	bool streams;         /* part after part (AFFINODE_MOVE_STREAM) */
	bool hands_over;      /* and host memory with it (AFFINODE_MOVE_HAND_OVER) */
	bool migrates;        /* RESUME: on another GPU */
	uint8_t to_gpu[16];   /* its UUID */
	uint64_t budget;      /* PARK: bytes of host memory it may take beside what is kept; 0: no limit. SPILL, READ_BACK: bytes to move */
	char folder[AFFINODE_TEXT_SIZE]; /* SPILL: what the file is to be below */
};

/* Between host memory and the disk: the GPU has no part in it.  */
static inline bool moves_disk(enum affinode_command_kind command)
{
	return command == AFFINODE_COMMAND_SPILL || command == AFFINODE_COMMAND_READ_BACK;
}

/* What became of a move.  */
struct moved {
	struct move move;
	enum affinode_status status;
	uint64_t bytes;
	uint64_t copied, zeros; /* of a park: bytes that were copied, bytes that needed none; of a resume: that were on disk, 0 */
	uint64_t duration_ns;
	bool leaves; /* the context is to leave the GPU too, and nothing stands in the way yet */
	char text[AFFINODE_TEXT_SIZE];
};

/* What context depth does for the mover; all of it by the mover.  */
struct depth_moves {
	/* While the driver answers: what stands in the way of it; NULL: nothing yet.  */
	const char *(*objection)(void);
	/* Parked and with the gate closed: take the context off the GPU. On failure the process is where it was, at
	 * memory depth, and `why` says what was in the way.  */
	enum affinode_status (*out)(char *why, size_t size);
	/* Before it takes memory for a resume; AFFINODE_OK also if there is nothing to do. `to`: the UUID of the
	 * GPU to come back on, NULL: where it was. AFFINODE_NO_GPU_ROOM, AFFINODE_REFUSED: the process is parked as
	 * before. After AFFINODE_OK the GPU's lock is held until gpu_unlock_all.  */
	enum affinode_status (*in)(const uint8_t *to, char *why, size_t size);
};
void mover_set_depth(const struct depth_moves *moves);

/* Start the thread; 0 or a negative errno.  */
int mover_start(void);

/* Hand over a move; -EBUSY while another one is under way.  */
int mover_submit(const struct move *move);

/* What becomes of the move under way, if it has that epoch: a prepared one is carried out or undone; one that is not
 * prepared yet can only be undone, and ends as soon as it can.  */
void mover_decide(uint32_t epoch, bool commit);

/* There is no controller to decide any more: a prepared park is undone, a prepared resume carried out.  */
void mover_link_lost(void);

/* A call waits at the gate that a prepared park has closed.  */
bool mover_prepared_is_wanted(void);

/* Give back host memory that is only kept for the next park, down to `bytes`. Done in time, by the mover.  */
void mover_trim(uint64_t bytes);

/* Something was left for it to free.  */
void mover_wake(void);

/* Whether a move waits for the mover to take it up.  */
bool mover_has_next(void);

/* A lot came: make it ready ahead of its use. Or one has to go.  */
void mover_look(void);

/* The last move's outcome, once, or before it that it is prepared; false: nothing new. Polled by the link thread, which
 * is woken for it.  */
bool mover_take_outcome(struct moved *moved);

/* When a bounded wait for the GPU has to be given up, 0: none; and giving it up (opens the gate): false, it had ended.
 * The move itself ends only when the GPU's work does; what becomes of it is known. By the link thread.  */
uint64_t mover_wait_deadline_ns(void);
bool mover_revoke_wait(enum affinode_status *status, const char **why);

/* Free doomed blocks if the mover is not at work.  */
void mover_reap(void);

/* The mover reads the application's memory with the gate open.  */
bool mover_is_copying(void);

/* A thread that would take memory away meanwhile, or access to it, and cannot put that off steps aside: leaves the
 * gate, waits with this, and comes again. The park ends soon, on account of it.  */
void mover_wait_for_copies(void);

/* Come inside the gate for a free or, while it is closed, keep the mover from working: true, let it go afterwards. What
 * it does now is waited for, unless it opens the gate again before it is done.  */
bool mover_hold(struct gate_pass *pass);
void mover_let_go(void);

/* Keep the mover from working, waiting `ns` at most for what it does now; let it go afterwards. false: it works on.  */
bool mover_seize(uint64_t ns);

/* Wait until the mover has let go, `ns` at most; it stops between pieces once the process is dying.  */
void mover_quiesce(uint64_t ns);

/* What it is doing (describe.h).  */
int describe_mover(char *text, size_t size, int at);

#endif
