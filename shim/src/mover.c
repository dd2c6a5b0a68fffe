#include "mover.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "blocks.h"
#include "checkpoint.h"
#include "clock.h"
#include "contexts.h"
#include "driver.h"
#include "gate.h"
#include "kept.h"
#include "link.h"
#include "log.h"
#include "lots.h"
#include "mappings.h"
#include "moving.h"
#include "page.h"
#include "shim.h"
#include "slabs.h"
#include "staging.h"

#define DRAIN_NS (100 * MS_NS)
#define HOLD_POLL_NS (200 * 1000ull)
/* How often a prepared move looks for callers, and kept memory for others' need of it.  */
#define PREPARED_POLL_NS (5 * MS_NS)
#define KEPT_POLL_NS S_NS
/* Between looks whether the GPU is idle, to end what was freed during a park: the first, and the longest.  */
#define LEFT_FIRST_NS (20 * MS_NS)
#define LEFT_LAST_NS S_NS

enum decision { UNDECIDED, COMMIT, ABORT };

/* Held while a move is under way, and by those who must keep one from beginning.  */
static pthread_mutex_t work_lock = PTHREAD_MUTEX_INITIALIZER;

/* Guards all of these.  */
static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queue_changed = PTHREAD_COND_INITIALIZER;
static struct move next_move;
static _Atomic bool move_waits; /* read without it too */
static bool move_runs, outcome_waits;
static struct moved outcome;
static bool is_prepared;

static _Atomic int decision; /* about the move under way: enum decision */
static _Atomic bool copying;
static _Atomic unsigned steps_aside;
static _Atomic unsigned holders; /* frees that wait for the mover at a closed gate */
static _Atomic uint64_t trim_to = UINT64_MAX;
static _Atomic bool lot_came;

/* The bounded wait for the GPU at a closed gate. ARMED by the mover; whoever swaps it out of ARMED decides.  */
enum { WAIT_NONE, WAIT_ARMED, WAIT_REVOKED };
static _Atomic int bounded_wait;
static _Atomic uint64_t bounded_wait_ns;

uint64_t mover_wait_deadline_ns(void)
{
	return atomic_load(&bounded_wait) == WAIT_ARMED ? atomic_load(&bounded_wait_ns) : 0;
}

bool mover_revoke_wait(void)
{
	int armed = WAIT_ARMED;

	if (!atomic_compare_exchange_strong(&bounded_wait, &armed, WAIT_REVOKED))
		return false;
	gate_open();
	return true;
}

void outcome_is(struct moved *moved, enum affinode_status status, const char *text)
{
	moved->status = status;
	snprintf(moved->text, sizeof(moved->text), "%s", text);
}

bool mover_is_aborted(void)
{
	return atomic_load(&decision) == ABORT;
}

void mover_set_copying(bool now)
{
	atomic_store(&copying, now);
}

bool mover_is_copying(void)
{
	return atomic_load(&copying);
}

unsigned mover_steps_aside(void)
{
	return atomic_load(&steps_aside);
}

void mover_wait_for_copies(void)
{
	atomic_fetch_add(&steps_aside, 1);
	while (mover_is_copying())
		clock_sleep_ns(HOLD_POLL_NS);
}

/* Wait for every context at the closed gate, DRAIN_NS at most: beyond that the link thread opens the gate, since
 * whatever the GPU waits for may be waiting at it. Streams were seen idle, so this is nearly always at once; it covers
 * the per-thread default streams, which no other thread can ask about.  */
bool mover_synchronise_bounded(void)
{
	int armed = WAIT_ARMED;
	bool done;

	atomic_store(&bounded_wait_ns, clock_ns() + DRAIN_NS);
	atomic_store(&bounded_wait, WAIT_ARMED);
	link_wake();
	done = gpu_synchronise();
	if (!atomic_compare_exchange_strong(&bounded_wait, &armed, WAIT_NONE)) {
		atomic_store(&bounded_wait, WAIT_NONE);
		return false;
	}
	if (!done)
		gate_open();
	return done;
}

/* With the lock held: until something changes, `ns` at most.  */
static void wait_for_change(uint64_t ns)
{
	uint64_t until_ns = clock_ns() + ns;
	struct timespec until = {(time_t)(until_ns / S_NS), (long)(until_ns % S_NS)};

	pthread_cond_timedwait(&queue_changed, &queue_lock, &until);
}

static bool is_wanted(void)
{
	return gate_calls_waiting() > 0 || atomic_load(&holders) > 0;
}

/* What is to become of a prepared move by now. `wanted_since`: when a call first waited for a park to end, 0: none.  */
static enum decision prepared_verdict(const struct move *move, uint64_t since, uint64_t *wanted_since)
{
	uint64_t now = clock_ns();

	if (atomic_load(&decision) != UNDECIDED)
		return atomic_load(&decision);
	if (move->command == AFFINODE_COMMAND_RESUME)
		return now - since > AFFINODE_PREPARED_MS * MS_NS ? COMMIT : UNDECIDED;
	if (atomic_load(&gate.dying))
		return ABORT;
	if (!is_wanted())
		return UNDECIDED;
	if (!*wanted_since) {
		*wanted_since = now;
		link_wake();
	}
	return now - *wanted_since > AFFINODE_PREPARED_CALL_MS * MS_NS ? ABORT : UNDECIDED;
}

bool mover_wait_for_commit(struct moved *moved)
{
	uint64_t since = clock_ns(), wanted_since = 0;
	enum decision now;

	pthread_mutex_lock(&queue_lock);
	is_prepared = true;
	outcome = *moved;
	outcome.status = AFFINODE_PREPARED;
	outcome_waits = true;
	link_wake();
	while ((now = prepared_verdict(&moved->move, since, &wanted_since)) == UNDECIDED)
		wait_for_change(PREPARED_POLL_NS);
	is_prepared = false;
	pthread_mutex_unlock(&queue_lock);
	if (now == ABORT)
		outcome_is(moved, AFFINODE_REVOKED, wanted_since ? "a CUDA call came while parking"
								 : "not all processes of the kernel could be moved");
	return now == COMMIT;
}

void mover_decide(uint32_t epoch, bool commit)
{
	pthread_mutex_lock(&queue_lock);
	if (move_runs && next_move.prepare && next_move.epoch == epoch && (is_prepared || !commit) &&
	    atomic_load(&decision) == UNDECIDED)
		atomic_store(&decision, commit ? COMMIT : ABORT);
	pthread_cond_signal(&queue_changed);
	pthread_mutex_unlock(&queue_lock);
}

void mover_link_lost(void)
{
	pthread_mutex_lock(&queue_lock);
	if (move_runs && next_move.prepare && atomic_load(&decision) == UNDECIDED)
		atomic_store(&decision, next_move.command == AFFINODE_COMMAND_RESUME ? COMMIT : ABORT);
	pthread_cond_signal(&queue_changed);
	pthread_mutex_unlock(&queue_lock);
}

bool mover_prepared_is_wanted(void)
{
	bool wanted;

	pthread_mutex_lock(&queue_lock);
	wanted = is_prepared && next_move.command == AFFINODE_COMMAND_PARK && is_wanted();
	pthread_mutex_unlock(&queue_lock);
	return wanted;
}

void mover_trim(uint64_t bytes)
{
	atomic_store(&trim_to, bytes);
	pthread_mutex_lock(&queue_lock);
	pthread_cond_signal(&queue_changed);
	pthread_mutex_unlock(&queue_lock);
}

void mover_look(void)
{
	atomic_store(&lot_came, true);
	pthread_mutex_lock(&queue_lock);
	pthread_cond_signal(&queue_changed);
	pthread_mutex_unlock(&queue_lock);
}

static void trim_if_wished(void)
{
	uint64_t keep = atomic_exchange(&trim_to, UINT64_MAX);

	if (keep == UINT64_MAX && shim_state() == AFFINODE_STATE_RESIDENT && kept_memory_is_needed())
		keep = 0;
	/* Off the GPU nothing can be given back: all of it is contents, and the driver would not come back.  */
	if (keep == UINT64_MAX || slabs_bytes() <= keep || checkpoint_is_out())
		return;
	pthread_mutex_lock(&work_lock); /* exit waits for it */
	kept_trim(keep);
	pthread_mutex_unlock(&work_lock);
}

bool mover_has_next(void)
{
	return atomic_load(&move_waits);
}

void mover_wake(void)
{
	pthread_mutex_lock(&queue_lock);
	pthread_cond_signal(&queue_changed);
	pthread_mutex_unlock(&queue_lock);
}

static void prepare_lots_if_any_came(void)
{
	if (!atomic_exchange(&lot_came, false))
		return;
	pthread_mutex_lock(&work_lock);
	kept_prepare_lots(mover_has_next);
	pthread_mutex_unlock(&work_lock);
}

static void end_what_is_left(uint64_t *pause_ns)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	if (!blocks_wait_to_be_freed() || checkpoint_is_out())
		return;
	pthread_mutex_lock(&work_lock);
	driver.cuThreadExchangeStreamCaptureMode(&mode);
	*pause_ns = free_what_is_left() ? LEFT_FIRST_NS : *pause_ns * 2;
	driver.cuThreadExchangeStreamCaptureMode(&mode);
	pthread_mutex_unlock(&work_lock);
	if (*pause_ns > LEFT_LAST_NS)
		*pause_ns = LEFT_LAST_NS;
}

static void carry_out(struct moved *moved)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	uint64_t begin = clock_ns();
	bool parks = moved->move.command == AFFINODE_COMMAND_PARK;

	if (moved->move.deadline_ns && begin > moved->move.deadline_ns) {
		outcome_is(moved, AFFINODE_STALE, "the command came too late");
		return;
	}
	pthread_mutex_lock(&work_lock);
	if (!checkpoint_is_out())
		driver.cuThreadExchangeStreamCaptureMode(&mode);
	mappings_choose_contexts();
	if (parks)
		park(moved);
	else
		resume(moved);
	if (moved->status == AFFINODE_NO_HOST_ROOM)
		kept_trim(0);
	if (!checkpoint_is_out())
		driver.cuThreadExchangeStreamCaptureMode(&mode);
	pthread_mutex_unlock(&work_lock);
	moved->duration_ns = clock_ns() - begin;
	if (moved->status == AFFINODE_OK)
		page_note_move(parks, moved->bytes, moved->duration_ns, moved->copied, moved->zeros);
	log_line("%s: status %d, %llu bytes (%llu copied, %llu zeros) in %.1f ms %s", parks ? "park" : "resume",
		 moved->status, (unsigned long long)moved->bytes, (unsigned long long)moved->copied,
		 (unsigned long long)moved->zeros, (double)moved->duration_ns / 1e6, moved->text);
}

static void *mover_main(void *unused)
{
	uint64_t left_ns = LEFT_FIRST_NS;
	struct moved moved;

	(void)unused;
	for (;;) {
		pthread_mutex_lock(&queue_lock);
		while (!move_waits && atomic_load(&trim_to) == UINT64_MAX && !atomic_load(&lot_came)) {
			bool left = blocks_wait_to_be_freed() && shim_state() == AFFINODE_STATE_RESIDENT;

			if (slabs_bytes() == 0 && !left) {
				pthread_cond_wait(&queue_changed, &queue_lock);
				continue;
			}
			wait_for_change(left ? left_ns : KEPT_POLL_NS);
			if (!move_waits)
				break;
		}
		memset(&moved, 0, sizeof(moved));
		moved.move = next_move;
		if (!move_waits) {
			pthread_mutex_unlock(&queue_lock);
			end_what_is_left(&left_ns);
			trim_if_wished();
			prepare_lots_if_any_came();
			continue;
		}
		move_waits = false;
		pthread_mutex_unlock(&queue_lock);
		carry_out(&moved);
		pthread_mutex_lock(&queue_lock);
		move_runs = false;
		outcome = moved;
		outcome_waits = true;
		pthread_mutex_unlock(&queue_lock);
		link_wake();
	}
	return NULL;
}

int mover_start(void)
{
	pthread_condattr_t by_monotonic;
	sigset_t all, before;
	pthread_t thread;
	int error;

	/* Somebody may set the time of day back by hours while a call waits for us.  */
	pthread_condattr_init(&by_monotonic);
	pthread_condattr_setclock(&by_monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&queue_changed, &by_monotonic);
	pthread_condattr_destroy(&by_monotonic);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&thread, NULL, mover_main, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -error;
}

int mover_submit(const struct move *move)
{
	int error = 0;

	pthread_mutex_lock(&queue_lock);
	if (move_runs || outcome_waits) {
		error = -EBUSY;
	} else {
		next_move = *move;
		atomic_store(&decision, UNDECIDED);
		atomic_store(&move_waits, true);
		move_runs = true;
		pthread_cond_signal(&queue_changed);
	}
	pthread_mutex_unlock(&queue_lock);
	return error;
}

bool mover_take_outcome(struct moved *moved)
{
	bool taken;

	pthread_mutex_lock(&queue_lock);
	taken = outcome_waits;
	if (taken)
		*moved = outcome;
	outcome_waits = false;
	pthread_mutex_unlock(&queue_lock);
	return taken;
}

/* Inside the gate, with nothing being copied; false: the gate is closed.  */
static bool enter_for_free(struct gate_pass *pass)
{
	while (gate_try_enter(pass, AFFINODE_CLASS_FREE)) {
		if (!mover_is_copying())
			return true;
		gate_leave(pass);
		mover_wait_for_copies();
	}
	return false;
}

static bool try_to_hold(void)
{
	if (pthread_mutex_trylock(&work_lock) != 0)
		return false;
	if (!checkpoint_is_out())
		return true;
	pthread_mutex_unlock(&work_lock); /* the driver would not come back, nor the mover for us */
	return false;
}

/* Not a plain lock: the mover may be waiting for work on the GPU that ends only after the calling thread's next step, and
 * then the link thread opens the gate.  */
bool mover_hold(struct gate_pass *pass)
{
	bool entered;

	if (enter_for_free(pass))
		return false;
	atomic_fetch_add(&holders, 1);
	while (!(entered = enter_for_free(pass)) && !try_to_hold())
		clock_sleep_ns(HOLD_POLL_NS);
	atomic_fetch_sub(&holders, 1);
	return !entered;
}

void mover_let_go(void)
{
	pthread_mutex_unlock(&work_lock);
}

void mover_reap(void)
{
	if (pthread_mutex_trylock(&work_lock) != 0)
		return; /* it reaps when it is done */
	if (!checkpoint_is_out())
		blocks_reap(!gate_is_closed());
	pthread_mutex_unlock(&work_lock);
}

bool mover_seize(uint64_t ns)
{
	uint64_t until = clock_ns() + ns;

	while (pthread_mutex_trylock(&work_lock) != 0) {
		if (clock_ns() > until)
			return false;
		clock_sleep_ns(MS_NS);
	}
	return true;
}

void mover_quiesce(uint64_t ns)
{
	if (mover_seize(ns))
		mover_let_go();
}

void mover_reset_in_child(void)
{
	pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
	pthread_cond_t fresh_cond = PTHREAD_COND_INITIALIZER;

	memcpy(&work_lock, &fresh, sizeof(fresh));
	memcpy(&queue_lock, &fresh, sizeof(fresh));
	memcpy(&queue_changed, &fresh_cond, sizeof(fresh_cond));
	atomic_store(&move_waits, false);
	move_runs = outcome_waits = false;
	is_prepared = false;
	atomic_store(&copying, false);
	atomic_store(&holders, 0);
	atomic_store(&trim_to, UINT64_MAX);
	slabs_reset_in_child();
	staging_reset_in_child();
	lots_reset_in_child();
	atomic_store(&bounded_wait, WAIT_NONE);
}
