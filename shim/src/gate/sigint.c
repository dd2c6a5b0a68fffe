#include "gate/sigint.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "base/monotonic_futex.h"
#include "base/per_process.h"
#include "driver/thunk_pool.h"
#include "gate/gate.h"

/* Calls that come next, on the way out of what was interrupted, are not to wait either.  */
#define CANCEL_NS S_NS
#define LAYERS 16
#define MAX_DEPTH 8
#define TRIES 8

static OF_PROCESS pthread_mutex_t watchers_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic unsigned watchers;
static void (*wake_others)(void);

/* A handler of the program's that the shim put one of its own functions over. Each such handler has a function for itself
 * alone, for ever: a handler that the program puts over the shim's may keep that function as the next to call, and call it at
 * any time, also when no wait watches any more. With one function for all, the program's handler would call the shim's, and the
 * shim's, which was put over it since, the program's again, without end. A guard that leaves when the function is entered anew
 * would end that, but also the chain, before it reaches the first handler (Python's); and an interrupt that comes while another
 * is handled would look the same and be lost.  */
struct layer {
	_Atomic(uintptr_t) handler; /* 0: not used yet */
	bool takes_info;
	struct sigaction action; /* to put back: flags and mask may be others each time */
};
static struct layer layers[LAYERS];

/* The calls of a layer's function that this thread is in. A program that sets the same handler again over ours, and then
 * keeps ours as the one before itself, has made a ring. It cannot be told from interrupts within interrupts but by being
 * without end. A frame that is not below the last one's has outlived it: that was left by longjmp.  */
struct entry {
	uintptr_t frame;
	unsigned depth;
};
static __thread struct entry entered[LAYERS] __attribute__((tls_model("initial-exec")));

/* Note that the layer's function was entered. Return false if calls go in a ring. The caller puts `before` back afterwards.  */
static bool enter(unsigned layer, uintptr_t frame, struct entry *before)
{
	*before = entered[layer];
	if (before->frame <= frame)
		*before = (struct entry){0, 0};
	entered[layer] = (struct entry){frame, before->depth + 1};
	return before->depth < MAX_DEPTH;
}

void interrupts_wake_also(void (*wake)(void))
{
	wake_others = wake;
}

static void cancel_if_watched(void)
{
	int error = errno;

	if (atomic_load(&watchers)) {
		gate_cancel(CANCEL_NS);
		wake_others();
	}
	errno = error;
}

/* The shim's function is called as the program's would be: a handler that chains without information passes none on.  */
static void call_plain(unsigned layer, int signal)
{
	struct entry before;

	cancel_if_watched();
	if (enter(layer, (uintptr_t)__builtin_frame_address(0), &before))
		((void (*)(int))atomic_load(&layers[layer].handler))(signal);
	entered[layer] = before;
}

static void call_with_info(unsigned layer, int signal, siginfo_t *info, void *context)
{
	struct entry before;

	cancel_if_watched();
	if (enter(layer, (uintptr_t)__builtin_frame_address(0), &before))
		((void (*)(int, siginfo_t *, void *))atomic_load(&layers[layer].handler))(signal, info, context);
	entered[layer] = before;
}

#define LAYER(n)                                                                                                    \
	static void plain_##n(int signal)                                                                           \
	{                                                                                                           \
		call_plain(n, signal);                                                                              \
	}                                                                                                           \
	static void with_info_##n(int signal, siginfo_t *info, void *context)                                       \
	{                                                                                                           \
		call_with_info(n, signal, info, context);                                                           \
	}
REPEAT_16(LAYER, 0x)

#define PLAIN(n) plain_##n,
#define WITH_INFO(n) with_info_##n,
static void (*const plain[LAYERS])(int) = {REPEAT_16(PLAIN, 0x)};
static void (*const with_info[LAYERS])(int, siginfo_t *, void *) = {REPEAT_16(WITH_INFO, 0x)};

/* Return whose function the handler is, as the index of its layer; -1 if it is none of the shim's.  */
static int layer_of(const struct sigaction *action)
{
	for (int i = 0; i < LAYERS; i++)
		if (action->sa_flags & SA_SIGINFO ? action->sa_sigaction == with_info[i] : action->sa_handler == plain[i])
			return i;
	return -1;
}

static uintptr_t handler_of(const struct sigaction *action)
{
	return action->sa_flags & SA_SIGINFO ? (uintptr_t)action->sa_sigaction : (uintptr_t)action->sa_handler;
}

/* Return whether the program handles the signal: it neither ends the process nor is it ignored. A handler of one use does not
 * count, since the kernel takes it off before it runs.  */
static bool is_handled(const struct sigaction *action)
{
	return !(action->sa_flags & (int)SA_RESETHAND) &&
	       (action->sa_flags & SA_SIGINFO ||
		(action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN && action->sa_handler != SIG_ERR));
}

/* Return the layer over that handler, which is always the same; -1 if the program has set more handlers than there are layers.  */
static int layer_over(const struct sigaction *action)
{
	bool takes_info = action->sa_flags & SA_SIGINFO;
	static bool said;
	int i;

	for (i = 0; i < LAYERS; i++) {
		uintptr_t handler = atomic_load(&layers[i].handler);

		if (!handler || (handler == handler_of(action) && layers[i].takes_info == takes_info))
			break;
	}
	if (i == LAYERS) {
		if (!said)
			log_line("too many handlers of SIGINT: it ends no wait any more");
		said = true;
		return -1;
	}
	layers[i].action = *action;
	layers[i].takes_info = takes_info;
	atomic_store(&layers[i].handler, handler_of(action));
	return i;
}

/* Put a layer over the program's handler. The program may set another one at any moment, also between the look and the change:
 * the handler that was there at the change counts.  */
static void put_over(void)
{
	struct sigaction now, ours, was;

	if (sigaction(SIGINT, NULL, &now) != 0)
		return;
	for (int tries = 0; tries < TRIES && is_handled(&now) && layer_of(&now) < 0; tries++) {
		int layer = layer_over(&now);

		if (layer < 0)
			return;
		ours = now;
		if (layers[layer].takes_info)
			ours.sa_sigaction = with_info[layer];
		else
			ours.sa_handler = plain[layer];
		if (sigaction(SIGINT, &ours, &was) != 0 || handler_of(&was) == handler_of(&now))
			return;
		now = was;
		if (!is_handled(&now) || layer_of(&now) >= 0)
			sigaction(SIGINT, &now, NULL);
	}
}

/* Put the program's handler back, unless it has set another one meanwhile.  */
static void take_away(void)
{
	struct sigaction now, was;
	int layer = sigaction(SIGINT, NULL, &now) == 0 ? layer_of(&now) : -1;

	if (layer >= 0 && sigaction(SIGINT, &layers[layer].action, &was) == 0 && layer_of(&was) != layer)
		sigaction(SIGINT, &was, NULL);
}

/* Take the lock with all signals blocked: some programs leave a handler by longjmp, which must not happen with the lock held.  */
static void lock(sigset_t *before)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, before);
	pthread_mutex_lock(&watchers_lock);
}

static void unlock(const sigset_t *before)
{
	pthread_mutex_unlock(&watchers_lock);
	pthread_sigmask(SIG_SETMASK, before, NULL);
}

void interrupts_watch(void)
{
	sigset_t before;

	lock(&before);
	if (atomic_fetch_add(&watchers, 1) == 0)
		put_over();
	unlock(&before);
}

void interrupts_look(void)
{
	sigset_t before;

	lock(&before);
	put_over();
	unlock(&before);
}

void interrupts_leave(void)
{
	sigset_t before;

	lock(&before);
	if (atomic_fetch_sub(&watchers, 1) == 1)
		take_away();
	unlock(&before);
}

/* Layers stay: handlers that the program has put over them are the child's, too.  */
void interrupts_begin_again(void)
{
	if (atomic_exchange(&watchers, 0))
		take_away();
}
