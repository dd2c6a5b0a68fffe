/* The mover and the application's calls keep out of each other's way: waits for the GPU that are given up in time, calls
 * that step aside while memory is read, and calls that keep the mover from working.  */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/describe.h"
#include "base/monotonic_futex.h"
#include "base/per_process.h"
#include "gate/gate.h"
#include "gpu/contexts.h"
#include "memory/blocks/block.h"
#include "mover/internal.h"
#include "state/controller.h"
#include "state/depth.h"

#define DRAIN_NS (100 * MS_NS)
#define HOLD_POLL_NS (200 * 1000ull)

static OF_PROCESS _Atomic bool copying;
static _Atomic unsigned steps_aside;
static OF_PROCESS _Atomic unsigned holders; /* frees that wait for the mover at a closed gate */

/* The bounded wait for the GPU at a closed gate: its number, while it lasts. The thread that swaps that decides how it ends, and
 * one that comes late finds another number. What is given up ends when the gate is open: the mover may close it again then.  */
enum { WAIT_NONE, WAIT_OPENS_GATE, WAIT_GIVEN_UP, WAIT_FIRST };
static OF_PROCESS _Atomic uint64_t bounded_wait;
static _Atomic uint64_t bounded_wait_ns;
static _Atomic unsigned waiting_before; /* calls that waited when it began */

uint64_t mover_wait_deadline_ns(uint64_t *wait)
{
	uint64_t deadline = atomic_load(&bounded_wait_ns);

	*wait = atomic_load(&bounded_wait);
	if (*wait < WAIT_FIRST)
		return 0;
	/* Reading depends on nothing that waits: it has the time that it takes, until it keeps a call waiting.  */
	if (mover_is_copying() && gate_calls_waiting() <= atomic_load(&waiting_before) && !mover_has_holders())
		atomic_compare_exchange_strong(&bounded_wait_ns, &deadline, clock_ns() + DRAIN_NS); /* unless it is the next one's */
	return atomic_load(&bounded_wait_ns);
}

bool mover_revoke_wait(uint64_t wait, enum affinode_status *status, enum reason *why)
{
	bool reads = mover_is_copying();

	if (!atomic_compare_exchange_strong(&bounded_wait, &wait, WAIT_OPENS_GATE))
		return false;
	gate_open();
	atomic_store(&bounded_wait, WAIT_GIVEN_UP);
	*status = reads ? AFFINODE_REVOKED : AFFINODE_BUSY;
	*why = reads ? REASON_CALL_CAME : REASON_GPU_COMPUTES;
	return true;
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

/* At the closed gate: whatever the GPU waits for may be waiting there too, so beyond DRAIN_NS the link thread opens it.
 * 0, or -ETIMEDOUT: it did.  */
static int bounded(void (*work)(void *), void *data)
{
	static uint64_t next = WAIT_FIRST;
	uint64_t this_one = next++;

	atomic_store(&waiting_before, gate_calls_waiting());
	atomic_store(&bounded_wait_ns, clock_ns() + DRAIN_NS);
	atomic_store(&bounded_wait, this_one);
	link_wake();
	work(data);
	if (atomic_compare_exchange_strong(&bounded_wait, &this_one, WAIT_NONE))
		return 0;
	while (atomic_load(&bounded_wait) == WAIT_OPENS_GATE)
		clock_sleep_ns(HOLD_POLL_NS);
	atomic_store(&bounded_wait, WAIT_NONE);
	return -ETIMEDOUT;
}

static void synchronise(void *result)
{
	*(CUresult *)result = gpu_synchronise();
}

/* Streams were seen idle, so this is nearly always at once; it covers the per-thread default streams, which no
 * other thread can ask about.  */
int mover_synchronise_bounded(void)
{
	CUresult result;
	int error = bounded(synchronise, &result);

	if (error || result == CUDA_SUCCESS)
		return error;
	gate_open();
	return -EIO;
}

int mover_read_bounded(void (*read)(void *), void *data)
{
	int error;

	mover_set_copying(true); /* the gate may be open before the end */
	error = bounded(read, data);
	mover_set_copying(false);
	return error;
}

bool mover_has_holders(void)
{
	return atomic_load(&holders) > 0;
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
	if (pthread_mutex_trylock(&mover_work_lock) != 0)
		return false;
	if (!checkpoint_is_out())
		return true;
	pthread_mutex_unlock(&mover_work_lock); /* the driver would not come back, nor the mover for us */
	return false;
}

/* Not a plain lock: the mover may be waiting for work on the GPU that ends only after the calling thread's next
 * step, and then the link thread opens the gate.  */
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
	pthread_mutex_unlock(&mover_work_lock);
}

void mover_reap(void)
{
	if (pthread_mutex_trylock(&mover_work_lock) != 0)
		return; /* it reaps when it is done */
	if (!checkpoint_is_out())
		blocks_reap(!gate_is_closed());
	pthread_mutex_unlock(&mover_work_lock);
}

bool mover_seize(uint64_t ns)
{
	uint64_t until = clock_ns() + ns;

	while (pthread_mutex_trylock(&mover_work_lock) != 0) {
		if (clock_ns() > until)
			return false;
		clock_sleep_ns(MS_NS);
	}
	return true;
}

int describe_holds(char *text, size_t size, int at)
{
	uint64_t wait = atomic_load(&bounded_wait);

	DESCRIBE("mover: %scopying, %u stepped aside, %u frees wait for it, its bounded wait: %s\n",
		 mover_is_copying() ? "" : "not ", atomic_load(&steps_aside), atomic_load(&holders),
		 wait == WAIT_NONE ? "none" : wait >= WAIT_FIRST ? "armed" : "given up");
	return at;
}
