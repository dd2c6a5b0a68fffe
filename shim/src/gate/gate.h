/* The gate: every driver call that needs the GPU passes it, and waits at it while the process is parked.
 *
 * The way in costs a store and a load on a thread's own slot; the thread that closes the gate pays for the ordering with
 * membarrier(2). A call that finds the gate closed leaves its slot before it sleeps, so a closed gate drains.  */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "driver/cuda_types.h"
#include "protocol.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

enum {
	GATE_CLOSED = 1u << 0,
	GATE_FENCED = 1u << 1, /* this kernel lacks membarrier: every call takes the slow way in, which has a fence */
	GATE_COUNTING = 1u << 2, /* every call takes the slow way in, which counts it by its entry point */
};

#define GATE_NESTED ((uintptr_t)1)

struct gate_pass;

/* Each thread that made a gated call has one. Slots are recycled but never freed, so any thread may read any slot at any time.  */
struct slot {
	_Atomic uint32_t inside;
	_Atomic uint32_t waiting;
	_Atomic uint32_t nested; /* how many wrappers were entered from inside a driver call, as by a callback or a tool */
	_Atomic(struct gate_pass *) pass; /* the innermost wrapper's frame: tells nested calls from abandoned ones */
	_Atomic pid_t tid;
	_Atomic uint32_t used;
	_Atomic uint32_t books; /* calls inside the second gate: bookkeeping_gate.h */
	struct slot *next;
	_Atomic uint64_t calls[AFFINODE_CLASSES];
	uint64_t synchronise_seen; /* its number among the thread's: gate_calls_at_work's own */
} __attribute__((aligned(128)));

/* Lives in the wrapper's stack frame for as long as the driver call lasts.  */
struct gate_pass {
	struct slot *slot; /* NULL: nothing to leave (refused); with GATE_NESTED set: inside another call of the thread */
	uintptr_t cookie;
};

struct gate {
	_Atomic uint32_t word;
	_Atomic uint32_t turns;          /* a futex: it changes whenever a waiter must look again */
	_Atomic uint32_t cancels;        /* counts cancel commands, so that a waiter notices one that came and went */
	_Atomic uint64_t cancel_until_ns;
	_Atomic uint32_t dying;
	_Atomic uint32_t broken; /* a CUresult that waiting calls return, since the context failed while parked */
} __attribute__((aligned(64)));

extern struct gate gate;
extern __thread struct slot *gate_slot __attribute__((tls_model("initial-exec")));

CUresult gate_enter_slow(struct gate_pass *pass, enum affinode_class class_, const char *name);

/* Enter the gate, waiting while it is closed. Return CUDA_SUCCESS, or the error that the call is to return instead.
 * `name` points to the entry point's name, which is read only while calls are counted by it (entry_point_counts.h).
 * The pass is declared with GATE_PASS, which leaves the gate when the frame goes, by return, exception or cancellation.  */
static inline __attribute__((always_inline)) CUresult gate_enter_named(struct gate_pass *pass, enum affinode_class class_,
									 const char *const *name)
{
	struct slot *slot = gate_slot;

	if (likely(slot && !atomic_load_explicit(&slot->inside, memory_order_relaxed))) {
		pass->cookie = (uintptr_t)pass ^ (uintptr_t)slot;
		atomic_store_explicit(&slot->pass, pass, memory_order_relaxed);
		atomic_store_explicit(&slot->inside, 1 + class_, memory_order_relaxed);
		atomic_signal_fence(memory_order_seq_cst);
		if (likely(!atomic_load_explicit(&gate.word, memory_order_acquire))) {
			uint64_t n = atomic_load_explicit(&slot->calls[class_], memory_order_relaxed);
			atomic_store_explicit(&slot->calls[class_], n + 1, memory_order_relaxed);
			pass->slot = slot;
			return CUDA_SUCCESS;
		}
		atomic_store_explicit(&slot->inside, 0, memory_order_release);
	}
	return gate_enter_slow(pass, class_, *name);
}

#define gate_enter_as(pass, class_, name) gate_enter_named(pass, class_, &(const char *){name})
/* Enter in a hook, whose function is called on_NAME.  */
#define gate_enter(pass, class_) gate_enter_as(pass, class_, __func__)

static inline __attribute__((always_inline)) void gate_leave(struct gate_pass *pass)
{
	if (unlikely((uintptr_t)pass->slot & GATE_NESTED)) {
		atomic_fetch_sub(&((struct slot *)((uintptr_t)pass->slot & ~GATE_NESTED))->nested, 1);
		pass->slot = NULL;
	} else if (likely(pass->slot)) {
		pass->cookie = 0;
		atomic_store_explicit(&pass->slot->inside, 0, memory_order_release);
		pass->slot = NULL;
	}
}

#define GATE_PASS(name) struct gate_pass name __attribute__((cleanup(gate_leave))) = {NULL, 0}

/* Enter without waiting. Return false if the gate is closed. For frees, which must never wait.  */
bool gate_try_enter(struct gate_pass *pass, enum affinode_class class_);

/* Called once, at the first cuInit.  */
void gate_start(void);
void gate_begin_again(void);

/* Close the gate and wait until no call is inside, `drain_ns` at most. Return 0, or -EBUSY with the gate open again. A call that comes
 * to the closed gate before it is drained makes it give up at once.  */
int gate_close(uint64_t drain_ns);
/* Do the same although the application is at work: wait `patience_ns` for calls inside, but only `drain_ns` from the moment that a
 * call waits at the gate, since that may be what those inside wait for.  */
int gate_close_at_next_call(uint64_t patience_ns, uint64_t drain_ns);
void gate_open(void);
bool gate_is_closed(void);

/* Have every waiting call return CUDA_ERROR_DEVICE_UNAVAILABLE, and calls that come to the closed gate in the next `duration_ns`,
 * too.  */
void gate_cancel(uint64_t duration_ns);
void gate_cancel_end(void);
void gate_set_dying(void);
/* Have waiting calls, and those that come to the closed gate, return that error, since what they want cannot be resumed any more.
 * CUDA_SUCCESS ends that.  */
void gate_set_broken(CUresult error);

/* Wait as a call of that class does. Return CUDA_SUCCESS once the gate is open, or what the call is to return instead. With `gives_up`
 * an interrupt ends the wait, whatever the class.  */
CUresult gate_wait(enum affinode_class class_, bool gives_up);
void gate_wake_waiters(void);

/* Return what an allocation that waits for room has to return, given the `gate.cancels` it began with; CUDA_SUCCESS: it waits
 * on.  */
CUresult gate_verdict(enum affinode_class class_, uint32_t cancels_at_start);

/* Return how many calls wait at the closed gate, and how many are inside it.  */
unsigned gate_calls_waiting(void);
unsigned gate_calls_inside(void);
/* Return how many calls inside are a sign of use. A synchronise counts if the last look saw the same one: a call that lasts that
 * long waits for work, and one that comes back at once, as a poller's does, found none. Called by one thread at a time.  */
unsigned gate_calls_at_work(uint64_t now);
/* Free the slots of threads that ended inside a call, by a bare SYS_exit: those are not inside any more.  */
void gate_forget_dead_threads(void);
/* Begin or end to count calls by entry point (entry_point_counts.h).  */
void gate_set_counting(bool counting);
void gate_sum_calls(uint64_t calls[AFFINODE_CLASSES]);
