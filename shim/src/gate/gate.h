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
	GATE_FENCED = 1u << 1, /* membarrier is missing here: the slow way in, with a fence, is the only one */
	GATE_COUNTING = 1u << 2, /* every call takes the slow way in, which counts it by its entry point */
};

#define GATE_NESTED ((uintptr_t)1)

struct gate_pass;

/* One per thread that ever made a gated call; recycled, never freed, so that any thread may read it at any time.  */
struct slot {
	_Atomic uint32_t inside;
	_Atomic uint32_t waiting;
	_Atomic uint32_t nested; /* wrappers entered from inside a driver call: by a callback, a tool */
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
	_Atomic uint32_t turns;          /* futex: counts whatever a waiter must look at anew */
	_Atomic uint32_t cancels;        /* counts cancel commands, so that a waiter notices one that came and went */
	_Atomic uint64_t cancel_until_ns;
	_Atomic uint32_t dying;
	_Atomic uint32_t broken; /* a CUresult: its context has failed while parked, and waiting calls get that */
} __attribute__((aligned(64)));

extern struct gate gate;
extern __thread struct slot *gate_slot __attribute__((tls_model("initial-exec")));

CUresult gate_enter_slow(struct gate_pass *pass, enum affinode_class class_, const char *name);

/* Enter, or say why not: CUDA_SUCCESS, or the error that the waiting call is to return.
 * `name`: where the entry point's name is, looked at only while calls are counted by it (entry_point_counts.h).
 * Use with a pass declared with GATE_PASS, which leaves when the frame goes, by return, exception or cancellation.  */
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
/* In a hook, which is called on_NAME.  */
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

/* Enter without waiting: false when the gate is closed. For frees, which must never wait.  */
bool gate_try_enter(struct gate_pass *pass, enum affinode_class class_);

/* Called once, at the first cuInit.  */
void gate_start(void);
void gate_begin_again(void);

/* Close and wait until no call is inside, `drain_ns` at most: 0, or -EBUSY with the gate open again. A call that comes
 * to the closed gate before it is drained makes it give up at once.  */
int gate_close(uint64_t drain_ns);
/* The same for new calls and those inside: waits `patience_ns` for those inside while no other is kept waiting, and
 * `drain_ns` from the moment that one is, which may be what those inside wait for.  */
int gate_close_at_next_call(uint64_t patience_ns, uint64_t drain_ns);
void gate_open(void);
bool gate_is_closed(void);

/* Wake every waiting call with CUDA_ERROR_DEVICE_UNAVAILABLE; calls that come to a closed gate in the next
 * `duration_ns` fail alike.  */
void gate_cancel(uint64_t duration_ns);
void gate_cancel_end(void);
void gate_set_dying(void);
/* There is no way back to what waiting calls want: they, and those that come to the closed gate, return that error.
 * CUDA_SUCCESS: there is.  */
void gate_set_broken(CUresult error);

/* Wait as a call of that class that wants the GPU: CUDA_SUCCESS, or what it is to return instead. `gives_up`: an
 * interrupt ends the wait, whatever the class.  */
CUresult gate_wait(enum affinode_class class_, bool gives_up);
void gate_wake_waiters(void);

/* What a waiter elsewhere (an allocation that waits for room) has to return, given the `gate.cancels` it began with:
 * CUDA_SUCCESS to go on waiting.  */
CUresult gate_verdict(enum affinode_class class_, uint32_t cancels_at_start);

/* Calls that wait at the closed gate, and calls inside it.  */
unsigned gate_calls_waiting(void);
unsigned gate_calls_inside(void);
/* How many calls inside are a sign of use. A synchronise is one when the last look saw the same one: a call that
 * waits as long as that waits for work, and one that comes back at once, as a poller's does, found none. One caller
 * at a time.  */
unsigned gate_calls_at_work(uint64_t now);
/* Threads that ended inside a call, by a bare SYS_exit, are not inside any more.  */
void gate_forget_dead_threads(void);
/* Whether calls are counted by entry point (entry_point_counts.h).  */
void gate_set_counting(bool counting);
void gate_sum_calls(uint64_t calls[AFFINODE_CLASSES]);
