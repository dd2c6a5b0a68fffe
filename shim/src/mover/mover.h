/* The mover: the one thread that parks and resumes a process's device memory. It works on one move at a time; between moves it
 * gives back and prepares host memory.  */
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
	MOVE_SHARE,           /* from host memory to packs there that other processes of the user have, too */
	MOVE_HIBERNATE,       /* all that there is to the disk, the context off the GPU, and off the link */
	MOVE_KINDS
};

struct move {
	enum move_kind kind;
	uint32_t epoch;
	uint64_t deadline_ns; /* not to be begun after this; 0: none */
	bool in_two_steps;    /* AFFINODE_MOVE_PREPARE */
	uint8_t to_gpu[16];   /* MIGRATE: its UUID */
	/* Of a park: bytes of host memory that it may take beside what is kept; 0: no limit. SPILL, READ_BACK: bytes to move. SHARE: the number in the
	 * name of the user's folder.  */
	uint64_t budget;
	char folder[AFFINODE_TEXT_SIZE]; /* SPILL, HIBERNATE, SHARE: files are made below it */
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

/* How a move ended, or that it is prepared; sent to the controller as its reply.  */
struct moved {
	struct move move;
	enum affinode_status status;
	uint64_t bytes;
	uint64_t copied; /* a park: bytes that were copied out; a resume: bytes that came from the disk; SHARE: bytes that went to packs */
	uint64_t zeros;  /* a park: bytes that were zero and needed no copy */
	uint64_t duration_ns;
	bool leaves; /* a park at context depth, to which there was no objection when it began */
	char text[AFFINODE_TEXT_SIZE];
};

/* What context depth does for the mover, which is lower than it. The mover's thread calls all of these.  */
struct depth_moves {
	/* Say why the context cannot leave the GPU; NO_REASON: nothing is known against it yet. The driver must answer calls.  */
	enum reason (*objection)(void);
	/* Take the context off the GPU, of a parked process whose gate is closed. `ends`: the process ends afterwards, so that calls which
	 * would bring it back are not awaited. On failure it stays parked at memory depth, and `why` says what was in the way.  */
	enum affinode_status (*out)(bool ends, char *why, size_t size);
	/* Bring the context back, before the resume takes memory; AFFINODE_OK if it never left. `to`: the UUID of the GPU to
	 * resume on, NULL: the one that it left. After AFFINODE_OK the GPU's lock is held until gpu_unlock_all, so that no
	 * other process of ours takes the room. Otherwise the process is parked as before.  */
	enum affinode_status (*in)(const uint8_t *to, char *why, size_t size);
};
void mover_set_depth(const struct depth_moves *moves);

/* Start the thread. Return 0 or a negative errno.  */
int mover_start(void);

/* Give the mover a move to carry out. Return 0, or -EBUSY while another one is under way or its outcome was not taken.  */
int mover_submit(const struct move *move);

/* Decide about the move with that epoch, if it is the one under way. A prepared move is carried out or undone. One that is
 * not prepared yet can only be undone: it ends as soon as it can.  */
void mover_decide(uint32_t epoch, bool commit);

/* Decide without the controller, when the link is lost: undo a prepared park, carry out a prepared resume.  */
void mover_link_lost(void);

/* Whether a call waits at the gate that a prepared park keeps closed: the controller is told.  */
bool mover_prepared_is_wanted(void);

/* Have the mover give back retained copies until `bytes` of host memory are left. It does so when it has no move.  */
void mover_trim(uint64_t bytes);

/* Wake the mover, since memory was freed that only it can end.  */
void mover_wake(void);

/* Whether a move was given to the mover that it has not begun.  */
bool mover_has_next(void);

/* Tell the mover that a lot came, which it prepares ahead of its use, or that one must be unmapped.  */
void mover_lots_changed(void);

/* Take what there is to tell of the last move: first, if it has two steps, that it is prepared, then its outcome, each once.
 * Return false where there is nothing new. The link thread polls this, and is woken when something is there.  */
bool mover_take_outcome(struct moved *moved);

/* When the mover's wait for the GPU at the closed gate must be given up, and in *wait which wait that is; 0: it does not wait. The
 * GPU's work may itself be waiting for a call that the gate keeps, so the link thread watches this and opens the gate.  */
uint64_t mover_wait_deadline_ns(uint64_t *wait);
/* Give that wait up and open the gate; return false if it had ended. *status and *why are the move's outcome from now on, although
 * the mover goes on waiting until the GPU's work is done.  */
bool mover_revoke_wait(uint64_t wait, enum affinode_status *status, enum reason *why);

/* Free doomed blocks now if the mover is not at work; else it does so when it is done.  */
void mover_reap(void);

/* Whether the mover reads the application's memory while calls go on.  */
bool mover_is_copying(void);

/* Wait until it does not. A thread that would take memory away, or access to it, and cannot put that off leaves the gate
 * before it waits, and enters again afterwards. The wait is short: the park gives up on account of it.  */
void mover_wait_for_copies(void);

/* Make it safe to free memory: enter the gate with `pass` and return false or, where the gate is closed, keep the mover from
 * working and return true; mover_let_go is due then. Waits for what the mover does now, or for the gate to open.  */
bool mover_hold(struct gate_pass *pass);
void mover_let_go(void);

/* Keep the mover from working until mover_let_go. Wait `ns` at most for what it does now; return false if it works on.  */
bool mover_seize(uint64_t ns);

/* Append what the mover is doing (base/describe.h).  */
int describe_mover(char *text, size_t size, int at);
