#include "mover/mover.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/describe.h"
#include "base/log.h"
#include "base/monotonic_futex.h"
#include "base/own_thread.h"
#include "base/per_process.h"
#include "driver/real_driver.h"
#include "gate/gate.h"
#include "gpu/contexts.h"
#include "host/bounce_ring.h"
#include "host/lent_memory.h"
#include "host/packs/spill_file.h"
#include "host/slabs.h"
#include "memory/app_mappings/app_mappings.h"
#include "memory/blocks/block.h"
#include "mover/internal.h"
#include "mover/retained_memory.h"
#include "state/controller.h"
#include "state/depth.h"
#include "state/shim_state.h"
#include "state/status_page.h"

/* How often kept memory is looked at for others' need of it.  */
#define KEPT_POLL_NS S_NS
/* Between looks whether the GPU is idle, to end what was freed during a park: the first, and the longest.  */
#define LEFT_FIRST_NS (20 * MS_NS)
#define LEFT_LAST_NS S_NS

OF_PROCESS pthread_mutex_t mover_work_lock = PTHREAD_MUTEX_INITIALIZER;
OF_PROCESS struct mover_queue mover_queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static OF_PROCESS _Atomic uint64_t trim_wish; /* bytes that may stay, and one; 0: nothing is wished */
static _Atomic bool lot_came;
static OF_PROCESS _Atomic bool woken; /* while it was at work */

void outcome_is(struct moved *moved, enum affinode_status status, enum reason reason)
{
	moved->status = status;
	snprintf(moved->text, sizeof(moved->text), "%s", reason_words(reason));
}

void mover_wait_for_change(uint64_t ns)
{
	uint64_t until_ns = clock_ns() + ns;
	struct timespec until = {(time_t)(until_ns / S_NS), (long)(until_ns % S_NS)};

	pthread_cond_timedwait(&mover_queue.changed, &mover_queue.lock, &until);
}

void mover_trim(uint64_t bytes)
{
	atomic_store(&trim_wish, bytes + 1);
	pthread_mutex_lock(&mover_queue.lock);
	pthread_cond_signal(&mover_queue.changed);
	pthread_mutex_unlock(&mover_queue.lock);
}

void mover_lots_changed(void)
{
	atomic_store(&lot_came, true);
	pthread_mutex_lock(&mover_queue.lock);
	pthread_cond_signal(&mover_queue.changed);
	pthread_mutex_unlock(&mover_queue.lock);
}

/* A context was being ended; unless something was wished meanwhile.  */
static void trim_again(uint64_t keep)
{
	uint64_t nothing = 0;

	atomic_compare_exchange_strong(&trim_wish, &nothing, keep + 1);
}

static void trim_if_wished(void)
{
	uint64_t keep = atomic_exchange(&trim_wish, 0) - 1;
	bool done;

	if (keep == UINT64_MAX && shim_state() == AFFINODE_STATE_RESIDENT && retained_memory_is_needed())
		keep = 0;
	/* Off the GPU nothing can be given back: all of it is contents, and the driver would not come back.  */
	if (keep == UINT64_MAX || (retained_bytes() <= keep && !lots_available()) || checkpoint_is_out())
		return;
	pthread_mutex_lock(&mover_work_lock); /* exit waits for it */
	done = retained_trim(keep);
	pthread_mutex_unlock(&mover_work_lock);
	link_wake(); /* lots that have ended */
	if (!done) {
		trim_again(keep);
		clock_sleep_ns(MS_NS);
	}
}

bool mover_has_next(void)
{
	return atomic_load(&mover_queue.waits);
}

void mover_wake(void)
{
	pthread_mutex_lock(&mover_queue.lock);
	atomic_store(&woken, true);
	pthread_cond_signal(&mover_queue.changed);
	pthread_mutex_unlock(&mover_queue.lock);
}

/* It is not needed again: what is kept for the next park is kept of a resident process.  */
static void give_back_what_was_freed(void)
{
	bool any;

	if (!shim_is_parked())
		return;
	pthread_mutex_lock(&mover_work_lock);
	any = retained_give_back_freed();
	pthread_mutex_unlock(&mover_work_lock);
	if (any)
		link_wake(); /* the page, and lots that have ended */
}

/* Those that are left of the last time, too: then a move came between.  */
static void prepare_lots_if_any_came(void)
{
	if (!atomic_exchange(&lot_came, false) && !lots_available())
		return;
	pthread_mutex_lock(&mover_work_lock);
	retained_forget_lots();
	retained_prepare_lots(mover_has_next);
	pthread_mutex_unlock(&mover_work_lock);
}

/* Something else is to be done.  */
static bool is_needed(void)
{
	return mover_has_next() || atomic_load(&trim_wish) || atomic_load(&lot_came) || atomic_load(&woken) ||
	       atomic_load(&gate.dying);
}

static bool must_pause(void)
{
	return is_needed() || mover_has_holders();
}

/* What came in an exchange was not registered beside its copies. Registering 20 GiB takes 0.6 s (H200), and whatever comes
 * meanwhile waits for one slab.  */
static void register_contents(void)
{
	bool more = shim_is_parked();

	while (more && !is_needed()) {
		pthread_mutex_lock(&mover_work_lock);
		more = retained_register_contents(must_pause);
		pthread_mutex_unlock(&mover_work_lock);
		while (more && mover_has_holders() && !is_needed())
			clock_sleep_ns(MS_NS);
	}
}

static void end_what_is_left(uint64_t *pause_ns)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	if (!blocks_wait_to_be_freed() || checkpoint_is_out())
		return;
	pthread_mutex_lock(&mover_work_lock);
	driver.cuThreadExchangeStreamCaptureMode(&mode);
	*pause_ns = free_what_is_left() ? LEFT_FIRST_NS : *pause_ns * 2;
	driver.cuThreadExchangeStreamCaptureMode(&mode);
	pthread_mutex_unlock(&mover_work_lock);
	if (*pause_ns > LEFT_LAST_NS)
		*pause_ns = LEFT_LAST_NS;
}

/* A move that failed because a context did will fail again and again. A call that waits for its end gets the
 * context's error, as any call in it would.  */
static void report_failed_context(struct moved *moved)
{
	bool parked = shim_is_parked();
	CUresult error;

	if (moved->status == AFFINODE_OK)
		gate_set_broken(CUDA_SUCCESS);
	if ((moved->status != AFFINODE_BUSY && moved->status != AFFINODE_FAILED) || checkpoint_is_out())
		return;
	error = contexts_failed();
	if (error == CUDA_SUCCESS)
		return;
	moved->status = AFFINODE_FAILED;
	contexts_failed_text(moved->text, sizeof(moved->text));
	if (parked)
		gate_set_broken(error);
}

const struct move_traits move_kinds[MOVE_KINDS] = {
	[MOVE_PARK_LENT] = {"lent-park", AFFINODE_COMMAND_PARK, AFFINODE_MOVE_STREAM | AFFINODE_MOVE_HAND_OVER, true, park},
	[MOVE_PARK_STREAMED] = {"streamed-park", AFFINODE_COMMAND_PARK, AFFINODE_MOVE_STREAM, true, park},
	[MOVE_PREEMPT] = {"park-at-work", AFFINODE_COMMAND_PARK, AFFINODE_MOVE_PREEMPT, false, park},
	[MOVE_PARK_CONTEXT] = {"park-at-context-depth", AFFINODE_COMMAND_PARK, AFFINODE_MOVE_CONTEXT, true, park},
	[MOVE_PARK] = {"park", AFFINODE_COMMAND_PARK, 0, true, park},
	[MOVE_MIGRATE] = {"migration", AFFINODE_COMMAND_RESUME, AFFINODE_MOVE_MIGRATE, false, resume},
	[MOVE_RESUME_LENDING] = {"lending-resume", AFFINODE_COMMAND_RESUME, AFFINODE_MOVE_STREAM | AFFINODE_MOVE_HAND_OVER, false, resume},
	[MOVE_RESUME_STREAMED] = {"streamed-resume", AFFINODE_COMMAND_RESUME, AFFINODE_MOVE_STREAM, false, resume},
	[MOVE_RESUME] = {"resume", AFFINODE_COMMAND_RESUME, 0, true, resume},
	[MOVE_RESUME_ALONE] = {"lone-resume", AFFINODE_COMMAND_RESUME, 0, false, resume},
	[MOVE_SPILL] = {"spill", AFFINODE_COMMAND_SPILL, 0, false, spill},
	[MOVE_READ_BACK] = {"read-back", AFFINODE_COMMAND_READ_BACK, 0, false, read_back},
	[MOVE_SHARE] = {"sharing", AFFINODE_COMMAND_SHARE, 0, false, share},
	[MOVE_HIBERNATE] = {"hibernation", AFFINODE_COMMAND_HIBERNATE, 0, false, hibernate},
};

enum move_kind move_kind_of(const struct affinode_command *command)
{
	enum move_kind kind = 0;

	while (kind < MOVE_KINDS && (move_kinds[kind].command != command->command ||
				     (command->argument & move_kinds[kind].flags) != move_kinds[kind].flags))
		kind++;
	return kind;
}

static void move_gpu_memory(struct moved *moved)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	pthread_mutex_lock(&mover_work_lock);
	if (!checkpoint_is_out())
		driver.cuThreadExchangeStreamCaptureMode(&mode);
	mappings_choose_contexts();
	move_kinds[moved->move.kind].carry_out(moved);
	if (moved->status == AFFINODE_NO_HOST_ROOM && !retained_trim(0))
		trim_again(0);
	report_failed_context(moved);
	if (!checkpoint_is_out())
		driver.cuThreadExchangeStreamCaptureMode(&mode);
	pthread_mutex_unlock(&mover_work_lock);
}

static void carry_out(struct moved *moved)
{
	bool parks = move_parks(&moved->move), on_gpu = parks || move_resumes(&moved->move);
	uint64_t begin = clock_ns();

	if (moved->move.deadline_ns && begin > moved->move.deadline_ns)
		return outcome_is(moved, AFFINODE_STALE, REASON_TOO_LATE);
	if (on_gpu)
		move_gpu_memory(moved);
	else
		move_kinds[moved->move.kind].carry_out(moved);
	moved->duration_ns = clock_ns() - begin;
	if (on_gpu && moved->status == AFFINODE_OK)
		page_note_move(parks, moved->bytes, moved->duration_ns, moved->copied, moved->zeros);
	log_line("%s: status %d, %llu bytes (%llu copied, %llu zeros) in %.1f ms %s", move_kinds[moved->move.kind].name,
		 moved->status, (unsigned long long)moved->bytes, (unsigned long long)moved->copied,
		 (unsigned long long)moved->zeros, (double)moved->duration_ns / 1e6, moved->text);
}

static void *mover_main(void *unused)
{
	uint64_t left_ns = LEFT_FIRST_NS;
	struct moved moved;

	(void)unused;
	for (;;) {
		pthread_mutex_lock(&mover_queue.lock);
		while (!mover_queue.waits && !atomic_load(&trim_wish) && !atomic_load(&lot_came) && !atomic_load(&woken)) {
			bool left = blocks_wait_to_be_freed() && shim_state() == AFFINODE_STATE_RESIDENT;

			if (retained_bytes() == 0 && !lots_available() && !left) {
				pthread_cond_wait(&mover_queue.changed, &mover_queue.lock);
				continue;
			}
			mover_wait_for_change(left ? left_ns : KEPT_POLL_NS);
			if (!mover_queue.waits)
				break;
		}
		memset(&moved, 0, sizeof(moved));
		moved.move = mover_queue.next;
		if (!mover_queue.waits) {
			atomic_store(&woken, false);
			pthread_mutex_unlock(&mover_queue.lock);
			end_what_is_left(&left_ns);
			give_back_what_was_freed();
			trim_if_wished();
			prepare_lots_if_any_came();
			spill_tidy();
			register_contents();
			continue;
		}
		mover_queue.waits = false;
		pthread_mutex_unlock(&mover_queue.lock);
		carry_out(&moved);
		pthread_mutex_lock(&mover_queue.lock);
		mover_queue.runs = false;
		mover_queue.outcome = moved;
		mover_queue.outcome_waits = true;
		pthread_mutex_unlock(&mover_queue.lock);
		link_wake();
		spill_tidy();
		register_contents();
	}
	return NULL;
}

static enum reason no_objection(void)
{
	return NO_REASON;
}

static enum affinode_status not_out(bool ends, char *why, size_t size)
{
	(void)ends;
	snprintf(why, size, "this shim was built without context depth");
	return AFFINODE_REFUSED;
}

static enum affinode_status not_in(const uint8_t *to, char *why, size_t size)
{
	snprintf(why, size, "%s", to ? "this shim was built without context depth, and only that goes to another GPU" : "");
	return to ? AFFINODE_REFUSED : AFFINODE_OK;
}

static const struct depth_moves memory_depth_alone = {no_objection, not_out, not_in};
const struct depth_moves *depth_moves = &memory_depth_alone;

void mover_set_depth(const struct depth_moves *moves)
{
	depth_moves = moves;
}

int mover_start(void)
{
	pthread_condattr_t by_monotonic;

	/* The time of day may be set back by hours while a call waits for us.  */
	pthread_condattr_init(&by_monotonic);
	pthread_condattr_setclock(&by_monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&mover_queue.changed, &by_monotonic);
	pthread_condattr_destroy(&by_monotonic);
	return thread_begin(mover_main, NULL);
}

int mover_submit(const struct move *move)
{
	int error = 0;

	pthread_mutex_lock(&mover_queue.lock);
	if (mover_queue.runs || mover_queue.outcome_waits) {
		error = -EBUSY;
	} else {
		mover_queue.next = *move;
		atomic_store(&mover_queue.decision, UNDECIDED);
		atomic_store(&mover_queue.waits, true);
		mover_queue.runs = true;
		pthread_cond_signal(&mover_queue.changed);
	}
	pthread_mutex_unlock(&mover_queue.lock);
	return error;
}

bool mover_take_outcome(struct moved *moved)
{
	bool taken;

	pthread_mutex_lock(&mover_queue.lock);
	taken = mover_queue.outcome_waits;
	if (taken)
		*moved = mover_queue.outcome;
	mover_queue.outcome_waits = false;
	pthread_mutex_unlock(&mover_queue.lock);
	return taken;
}

/* As glibc keeps it: the thread that holds the lock.  */
static int holder(const pthread_mutex_t *lock)
{
	return *(volatile const int *)&lock->__data.__owner;
}

int describe_mover(char *text, size_t size, int at)
{
	bool known = false;

	for (int tries = 0; tries < 100 && !known; tries++) {
		known = pthread_mutex_trylock(&mover_queue.lock) == 0;
		if (!known)
			clock_sleep_ns(MS_NS);
	}
	DESCRIBE("mover: its work is held by thread %d, its queue by thread %d\n", holder(&mover_work_lock),
		 known ? 0 : holder(&mover_queue.lock));
	if (known) {
		DESCRIBE("mover: last move: %s, number %u%s%s%s%s, decision %d\n", move_kinds[mover_queue.next.kind].name,
			 mover_queue.next.epoch, mover_queue.waits ? ", not taken up" : "",
			 mover_queue.runs ? ", under way" : "", mover_queue.is_prepared ? ", prepared" : "",
			 mover_queue.outcome_waits ? ", its outcome not taken" : "", atomic_load(&mover_queue.decision));
		pthread_mutex_unlock(&mover_queue.lock);
	}
	return describe_holds(text, size, at);
}
