/* The mover: a thread that copies a process's device memory out and in. It alone parks and resumes.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/reasons.h"
#include "gate/gate.h"
#include "protocol.h"

/* What a move is; what follows from that is in move_kinds. A command asks for the first of these that has its flags.  */
enum move_kind {
	MOVE_PARK_LENT,       /* streamed, into host memory that the process is lent meanwhile */
	MOVE_PARK_STREAMED,   /* leaves part after part, beside a process that comes in */
	MOVE_PREEMPT,         /* parks an application that is at work */
	MOVE_PARK_CONTEXT,    /* at context depth */
	MOVE_PARK,
	MOVE_MIGRATE,         /* resumes on another GPU */
	MOVE_RESUME_LENDING,  /* streamed, and gives its host memory back on the way */
	MOVE_RESUME_STREAMED, /* comes back part after part, as there is room */
	MOVE_RESUME,
	MOVE_RESUME_ALONE,    /* without a controller, holding the GPUs' locks meanwhile */
	MOVE_SPILL,           /* from host memory to the disk: the GPU has no part in it */
	MOVE_READ_BACK,
	MOVE_KINDS
};

struct move {
	enum move_kind kind;
	uint32_t epoch;
	uint64_t deadline_ns; /* not to be begun after this; 0: none */
	bool in_two_steps;    /* AFFINODE_MOVE_PREPARE */
	uint8_t to_gpu[16];   /* MIGRATE: its UUID */
	/* Of a park: bytes of host memory that it may take beside what is kept; 0: no limit. SPILL, READ_BACK: bytes to move.  */
	uint64_t budget;
	char folder[AFFINODE_TEXT_SIZE]; /* SPILL: the file is made below it */
};

struct moved;

struct move_traits {
	const char *name;                   /* in the log */
	enum affinode_command_kind command; /* that asks for it */
	uint64_t flags;                     /* of the command: enum affinode_move_flags, without PREPARE */
	bool may_prepare;                   /* PREPARE may be beside them */
	void (*carry_out)(struct moved *moved);
};
extern const struct move_traits move_kinds[MOVE_KINDS];

enum move_kind move_kind_of(const struct affinode_command *command);

static inline bool move_parks(const struct move *move)
{
	return move_kinds[move->kind].command == AFFINODE_COMMAND_PARK;
}

static inline bool move_resumes(const struct move *move)
{
	return move_kinds[move->kind].command == AFFINODE_COMMAND_RESUME;
}

static inline bool move_streams(const struct move *move)
{
	return move_kinds[move->kind].flags & AFFINODE_MOVE_STREAM;
}

static inline bool move_hands_over(const struct move *move)
{
	return move_kinds[move->kind].flags & AFFINODE_MOVE_HAND_OVER;
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
	enum reason (*objection)(void);
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
void mover_lots_changed(void);

/* The last move's outcome, once, or before it that it is prepared; false: nothing new. Polled by the link thread, which
 * is woken for it.  */
bool mover_take_outcome(struct moved *moved);

/* When a bounded wait for the GPU has to be given up, 0: none; and giving it up (opens the gate): false, it had ended.
 * The move itself ends only when the GPU's work does; what becomes of it is known. By the link thread.  */
uint64_t mover_wait_deadline_ns(void);
bool mover_revoke_wait(enum affinode_status *status, enum reason *why);

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
