#include "context_depth/bookkeeping_gate.h"

#include <errno.h>
#include <stdatomic.h>

#include "base/monotonic_futex.h"
#include "context_depth/context_depth.h"
#include "context_depth/deferred_calls.h"
#include "context_depth/shadow/shadow.h"
#include "driver/entry_point.h"
#include "driver/thunk_pool.h"
#include "gate/gate.h"
#include "gate/thread_slots.h"
#include "state/shim_state.h"

#define DRAIN_POLL_NS 20000ull

bool books_enter(struct books_pass *pass)
{
	struct slot *slot = slot_own();

	pass->slot = slot;
	if (!slot) {
		shim_give_up_parking("no memory for a thread's slot");
		return !books_are_closed();
	}
	/* Sequentially consistent, as is the look at the word after it: the closer sees one or we see the other.  */
	if (atomic_fetch_add(&slot->books, 1) == 0 && books_are_closed()) {
		atomic_fetch_sub(&slot->books, 1);
		pass->slot = NULL;
		return false;
	}
	shadows_catch_up();
	return true;
}

void books_leave(struct books_pass *pass)
{
	if (pass->slot)
		atomic_fetch_sub(&pass->slot->books, 1);
}

CUresult books_wait(void)
{
	return gate_wait(AFFINODE_CLASS_HOST, false);
}

CUresult books_wait_or_give_up(void)
{
	return gate_wait(AFFINODE_CLASS_HOST, true);
}

static bool has_calls_inside(void)
{
	for (struct slot *slot = slots_first(); slot; slot = slot->next)
		if (atomic_load(&slot->used) && atomic_load(&slot->books))
			return true;
	return false;
}

int books_close(uint64_t drain_ns)
{
	uint64_t until = clock_ns() + drain_ns;

	atomic_store(&books_closed, 1);
	while (has_calls_inside()) {
		if (clock_ns() > until) {
			books_open();
			return -EBUSY;
		}
		clock_sleep_ns(DRAIN_POLL_NS);
	}
	return 0;
}

void books_open(void)
{
	atomic_store(&books_closed, 0);
	gate_wake_waiters();
}

/* What becomes of a call while the process is off the GPU.  */
enum meanwhile { WAITS, IS_PUT_OFF, IS_DONE, MAKES_EVENT, ASKS_FOR_END };

static bool is_copy; /* forked while the driver held its parent */

/* Answer a call of a process that is about to end while it is off the GPU: it has no work there, and whatever it frees goes
 * with it. PyTorch makes events for what it frees, in destructors, where an error ends it by SIGABRT (seen on an H200).  */
static bool ends_with_process(const struct thunk_target *target, W a0)
{
	if (is_copy || !atomic_load(&gate.dying) || target->what == WAITS)
		return false;
	if (shim_state() == AFFINODE_STATE_LOST) /* that one goes on, and is to hear of it at once */
		return false;
	if (target->what == MAKES_EVENT && a0)
		*(CUevent *)a0 = NULL;
	return true;
}

static bool put_off(const struct thunk_target *target, W a0, W a1, W a2)
{
	CUcontext context = NULL;

	return target->what == IS_PUT_OFF && !atomic_load(&gate.dying) && shadows_current(&context) &&
	       deferred_add(target->real, context, a0, a1, a2) == 0;
}

/* One function serves all thunks: as a part of each it would be compiled hundreds of times.  */
static __attribute__((noinline)) W call_int(const struct thunk_target *target, INT_PARAMETERS)
{
	struct books_pass pass;
	CUresult refused;
	W result;

	while (!books_enter(&pass)) {
		if (target->what == IS_DONE || put_off(target, a0, a1, a2) || ends_with_process(target, a0))
			return CUDA_SUCCESS;
		refused = books_wait();
		if (refused != CUDA_SUCCESS) /* or told, while it waited, that the process ends */
			return ends_with_process(target, a0) ? CUDA_SUCCESS : (W)refused;
	}
	result = ((int_fn)target->real)(INT_ARGUMENTS);
	books_leave(&pass);
	return result;
}

static __attribute__((noinline)) W call_wide(const struct thunk_target *target, WIDE_PARAMETERS)
{
	struct books_pass pass;
	CUresult refused;
	W result;

	while (!books_enter(&pass)) {
		refused = books_wait();
		if (refused != CUDA_SUCCESS)
			return (W)refused;
	}
	result = ((wide_fn)target->real)(WIDE_ARGUMENTS);
	books_leave(&pass);
	return result;
}

INT_POOL(TIMES_512)
WIDE_POOL(TIMES_16)

static void *thunk(void *next, bool wide, enum meanwhile meanwhile)
{
	void *thunk = thunk_bind(wide ? &wide_pool : &int_pool, next, meanwhile, NULL);

	if (!thunk)
		checkpoint_refuse(REASON_WRAPPERS_USED_UP);
	return thunk ? thunk : next;
}

static enum meanwhile meanwhile_of(unsigned traits)
{
	if (traits & TRAIT_DEFERRABLE)
		return IS_PUT_OFF;
	if (traits & TRAIT_ASKS_FOR_END)
		return ASKS_FOR_END;
	return traits & TRAIT_MAKES_EVENT ? MAKES_EVENT : WAITS;
}

static bool comes_to_the_driver(const struct entry_point *entry)
{
	return entry->class_ == AFFINODE_CLASS_HOST || entry->class_ == AFFINODE_CLASS_QUERY ||
	       entry->class_ == AFFINODE_CLASS_FREE || entry->class_ == AFFINODE_CLASS_SYNC ||
	       (entry->traits & TRAIT_PAST_THE_GATE);
}

void *books_below(const struct entry_point *entry, int version, void *real)
{
	void *shadow;

	if (entry->traits & TRAIT_NEVER_HELD)
		return real;
	if (entry->traits & TRAIT_SYNCHRONISES)
		return thunk(real, entry->wide, IS_DONE);
	if (!comes_to_the_driver(entry))
		return real;
	shadow = shadow_for(entry->name, version, real);
	return shadow ? shadow : thunk(real, entry->wide, meanwhile_of(entry->traits));
}

void *books_above(const struct entry_point *entry, void *hook)
{
	return entry->traits & TRAIT_HELD_ABOVE ? thunk(hook, false, WAITS) : hook;
}

void books_begin_again(void)
{
	is_copy = books_are_closed();
}
