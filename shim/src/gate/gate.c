/* The slow half of the gate: closing, draining, waiting, cancelling. See gate.h for the fast half.  */
#include "gate/gate.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <string.h>

#include "base/log.h"
#include "base/monotonic_futex.h"
#include "gate/entry_point_counts.h"
#include "gate/second_gate.h"
#include "gate/sigint.h"
#include "gate/thread_slots.h"
#include "state/controller.h"
#include "state/shim_state.h"

#define CANCEL_LIMIT_NS (5 * S_NS)
#define LOOK_AGAIN_NS S_NS
#define DRAIN_POLL_NS 20000ull
#define RECOVER_AFTER_NS (10 * MS_NS)
#define LOOKS_APART_NS (50 * MS_NS) /* pages are sampled every 100 ms, and now and then in between */

struct gate gate;

_Atomic uint32_t books_closed;
__thread bool shadows_behind __attribute__((tls_model("initial-exec")));
void (*shadows_tell)(void);

static int membarrier(int command)
{
	return (int)syscall(SYS_membarrier, command, 0, 0);
}

void gate_start(void)
{
	if (membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) != 0)
		atomic_fetch_or(&gate.word, GATE_FENCED);
}

void gate_begin_again(void)
{
	slots_begin_again();
	atomic_store(&gate.word, atomic_load(&gate.word) & GATE_FENCED);
	atomic_store(&gate.cancel_until_ns, 0);
	atomic_store(&gate.dying, 0);
	gate_set_broken(CUDA_SUCCESS);
}

void gate_set_counting(bool counting)
{
	if (counting)
		atomic_fetch_or(&gate.word, GATE_COUNTING);
	else
		atomic_fetch_and(&gate.word, ~(uint32_t)GATE_COUNTING);
}

bool gate_is_closed(void)
{
	return atomic_load(&gate.word) & GATE_CLOSED;
}

/* The count rises first: a waiter that has looked already, and does not sleep yet, will not fall asleep.  */
void gate_wake_waiters(void)
{
	atomic_fetch_add(&gate.turns, 1);
	futex_wake_all(&gate.turns);
}

void gate_open(void)
{
	atomic_fetch_and(&gate.word, ~(uint32_t)GATE_CLOSED);
	gate_wake_waiters();
}

unsigned gate_calls_inside(void)
{
	unsigned n = 0;

	for (struct slot *slot = slots_first(); slot; slot = slot->next)
		n += atomic_load(&slot->inside) != 0;
	return n;
}

unsigned gate_calls_at_work(uint64_t now)
{
	static uint64_t looked_at_ns;
	bool apart = now - looked_at_ns >= LOOKS_APART_NS;
	unsigned n = 0;

	for (struct slot *slot = slots_first(); slot; slot = slot->next) {
		uint32_t inside = atomic_load(&slot->inside);
		uint64_t number = atomic_load_explicit(&slot->calls[AFFINODE_CLASS_SYNC], memory_order_relaxed);

		if (inside == 1 + AFFINODE_CLASS_SYNC)
			n += apart && slot->synchronise_seen == number;
		else
			n += inside != 0;
		if (apart)
			slot->synchronise_seen = inside == 1 + AFFINODE_CLASS_SYNC ? number : UINT64_MAX;
	}
	if (apart)
		looked_at_ns = now;
	return n;
}

unsigned gate_calls_waiting(void)
{
	unsigned n = 0;

	for (struct slot *slot = slots_first(); slot; slot = slot->next)
		n += atomic_load(&slot->waiting) != 0;
	return n;
}

void gate_forget_dead_threads(void)
{
	if (gate_calls_inside() > 0)
		slots_recover_dead();
}

void gate_sum_calls(uint64_t calls[AFFINODE_CLASSES])
{
	memset(calls, 0, AFFINODE_CLASSES * sizeof(calls[0]));
	for (struct slot *slot = slots_first(); slot; slot = slot->next)
		for (int i = 0; i < AFFINODE_CLASSES; i++)
			calls[i] += atomic_load_explicit(&slot->calls[i], memory_order_relaxed);
}

/* Order all threads' stores and loads, which gate_enter leaves to the thread that closes: after this, each thread either shows
 * in its slot that it is inside, or sees the gate closed.  */
static int order_all_threads(void)
{
	if (atomic_load(&gate.word) & GATE_FENCED) {
		atomic_thread_fence(memory_order_seq_cst);
		return 0;
	}
	if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0)
		return 0;
	/* Not registered after all, or forbidden since: from now on the calls fence for themselves. Calls that are
	 * already past their check are not covered, so this attempt is given up.  */
	atomic_fetch_or(&gate.word, GATE_FENCED);
	return -EBUSY;
}

/* Close the gate. Calls inside have `patience_ns` to leave, but only `drain_ns` from the moment that another call waits at the
 * gate.  */
static int close_gate(uint64_t patience_ns, uint64_t drain_ns)
{
	uint64_t begin = clock_ns(), kept_since = 0;
	unsigned waiting_before = gate_calls_waiting();
	bool recovered = false;

	atomic_fetch_or(&gate.word, GATE_CLOSED);
	if (order_all_threads() != 0) {
		gate_open();
		return -EBUSY;
	}
	while (gate_calls_inside() > 0) {
		uint64_t now = clock_ns(), waited = now - begin;

		if (!kept_since && gate_calls_waiting() > waiting_before)
			kept_since = now;
		if (waited > patience_ns || (kept_since && now - kept_since >= drain_ns)) {
			gate_open();
			return -EBUSY;
		}
		if (waited > RECOVER_AFTER_NS && !recovered) {
			slots_recover();
			recovered = true;
			continue;
		}
		clock_sleep_ns(DRAIN_POLL_NS);
	}
	return 0;
}

int gate_close(uint64_t drain_ns)
{
	return close_gate(drain_ns, 0);
}

int gate_close_at_next_call(uint64_t patience_ns, uint64_t drain_ns)
{
	return close_gate(patience_ns, drain_ns);
}

void gate_cancel(uint64_t duration_ns)
{
	if (duration_ns > CANCEL_LIMIT_NS)
		duration_ns = CANCEL_LIMIT_NS;
	atomic_store(&gate.cancel_until_ns, clock_ns() + duration_ns);
	atomic_fetch_add(&gate.cancels, 1);
	gate_wake_waiters();
}

void gate_cancel_end(void)
{
	atomic_store(&gate.cancel_until_ns, 0);
}

void gate_set_dying(void)
{
	atomic_store(&gate.dying, 1);
	gate_wake_waiters();
}

void gate_set_broken(CUresult error)
{
	if (atomic_exchange(&gate.broken, (uint32_t)error) != (uint32_t)error)
		gate_wake_waiters();
}

static bool may_be_cancelled(enum affinode_class class_)
{
	return class_ == AFFINODE_CLASS_LAUNCH || class_ == AFFINODE_CLASS_COPY || class_ == AFFINODE_CLASS_ALLOC ||
	       class_ == AFFINODE_CLASS_SYNC;
}

CUresult gate_verdict(enum affinode_class class_, uint32_t cancels_at_start)
{
	if (atomic_load(&gate.dying))
		return CUDA_ERROR_DEINITIALIZED;
	if (class_ != AFFINODE_CLASS_HOST && atomic_load(&gate.broken))
		return (CUresult)atomic_load(&gate.broken);
	if (!may_be_cancelled(class_))
		return CUDA_SUCCESS;
	if (atomic_load(&gate.cancels) != cancels_at_start || clock_ns() < atomic_load(&gate.cancel_until_ns))
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	return CUDA_SUCCESS;
}

/* Return whether the closed gate holds calls of that class.  */
static bool is_held(enum affinode_class class_)
{
	return class_ == AFFINODE_CLASS_HOST ? books_are_closed() : gate_is_closed();
}

/* Sleep until the gate opens. Return CUDA_SUCCESS, or what the call is to return instead. A call that `gives_up` may be
 * cancelled.  */
static CUresult wait_at_gate(struct slot *slot, enum affinode_class class_, bool gives_up)
{
	enum affinode_class judged = gives_up && !may_be_cancelled(class_) ? AFFINODE_CLASS_SYNC : class_;
	uint32_t cancels = atomic_load(&gate.cancels);
	uint64_t since = clock_ns();
	CUresult result = CUDA_SUCCESS;
	struct told_wait told = {0};
	bool watches = false;

	for (;;) {
		uint32_t turn = atomic_load(&gate.turns);

		if (!is_held(class_))
			break;
		result = gate_verdict(judged, cancels);
		if (result != CUDA_SUCCESS)
			break;
		if (!atomic_exchange(&slot->waiting, 1))
			link_wake();
		if (gives_up && watches == link_is_connected()) {
			watches = !watches;
			watches ? interrupts_watch() : interrupts_leave();
		} else if (watches) {
			interrupts_look();
		}
		futex_wait(&gate.turns, turn, LOOK_AGAIN_NS);
		link_tell_wait(since, &told);
	}
	link_end_told_wait(&told);
	if (watches)
		interrupts_leave();
	atomic_store(&slot->waiting, 0);
	link_wake();
	return result;
}

CUresult gate_wait(enum affinode_class class_, bool gives_up)
{
	struct slot *slot = slot_own();

	return wait_at_gate(slot ? slot : slot_shared(), class_, gives_up);
}

/* A slot that says "inside" although its own thread comes in again: nested, if the outer wrapper's frame is still
 * there, deeper in the stack than this one; else left behind by longjmp.  */
static bool is_nested(const struct slot *slot, const struct gate_pass *pass)
{
	const struct gate_pass *outer = atomic_load(&slot->pass);

	return outer > pass && outer->cookie == ((uintptr_t)outer ^ (uintptr_t)slot);
}

/* Return whether the thread is inside a call already; then the pass is only counted.  */
static bool enter_nested(struct slot *slot, struct gate_pass *pass)
{
	if (!atomic_load(&slot->inside))
		return false;
	if (is_nested(slot, pass)) {
		atomic_fetch_add(&slot->nested, 1);
		pass->slot = (struct slot *)((uintptr_t)slot | GATE_NESTED);
		return true;
	}
	atomic_store(&slot->nested, 0);
	atomic_store(&slot->inside, 0);
	return false;
}

/* Return whether the gate is open for a call for whose slot there is no memory. Rather than refuse the call, the shim never
 * parks the process again. A park under way sees that before it gives anything up; the call waits for one that is done.  */
static bool is_open_without_slot(void)
{
	shim_give_up_parking("no memory for a thread's slot");
	atomic_thread_fence(memory_order_seq_cst);
	return !gate_is_closed();
}

static CUresult enter_without_slot(enum affinode_class class_)
{
	while (!is_open_without_slot()) {
		CUresult result;

		if (class_ == AFFINODE_CLASS_SYNC && shim_is_parked())
			return (CUresult)atomic_load(&gate.broken);
		result = wait_at_gate(slot_shared(), class_, may_be_cancelled(class_));
		if (result != CUDA_SUCCESS)
			return result;
	}
	shadows_catch_up();
	return CUDA_SUCCESS;
}

CUresult gate_enter_slow(struct gate_pass *pass, enum affinode_class class_, const char *name)
{
	struct slot *slot = slot_own();

	pass->slot = NULL;
	if (atomic_load(&gate.word) & GATE_COUNTING)
		entry_point_called(name);
	if (!slot)
		return enter_without_slot(class_);
	if (enter_nested(slot, pass))
		return CUDA_SUCCESS;
	for (;;) {
		pass->cookie = (uintptr_t)pass ^ (uintptr_t)slot;
		atomic_store(&slot->pass, pass);
		atomic_store(&slot->inside, 1 + class_);
		atomic_thread_fence(memory_order_seq_cst);
		if (!gate_is_closed()) {
			atomic_fetch_add(&slot->calls[class_], 1);
			pass->slot = slot;
			shadows_catch_up();
			return CUDA_SUCCESS;
		}
		atomic_store(&slot->inside, 0);
		/* At memory depth the context lives and all work was drained: there is nothing to wait for.  */
		if (class_ == AFFINODE_CLASS_SYNC && shim_is_parked())
			return (CUresult)atomic_load(&gate.broken);
		CUresult result = wait_at_gate(slot, class_, may_be_cancelled(class_));
		if (result != CUDA_SUCCESS)
			return result;
	}
}

bool gate_try_enter(struct gate_pass *pass, enum affinode_class class_)
{
	struct slot *slot = slot_own();

	pass->slot = NULL;
	if (!slot)
		return is_open_without_slot();
	if (enter_nested(slot, pass))
		return true;
	pass->cookie = (uintptr_t)pass ^ (uintptr_t)slot;
	atomic_store(&slot->pass, pass);
	atomic_store(&slot->inside, 1 + class_);
	atomic_thread_fence(memory_order_seq_cst);
	if (!gate_is_closed()) {
		pass->slot = slot;
		shadows_catch_up();
		return true;
	}
	atomic_store(&slot->inside, 0);
	return false;
}
