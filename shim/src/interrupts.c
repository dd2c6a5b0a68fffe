#include "interrupts.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "asks.h"
#include "clock.h"
#include "gate.h"

/* Calls that come next, on the way out of what was interrupted, are not to wait either.  */
#define CANCEL_NS S_NS

static pthread_mutex_t watchers_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned watchers;
static struct sigaction before;

/* The program's handler, for ours, which may run at any time: whoever noted ours as the one before theirs may call it when
 * nobody watches any more.  */
static _Atomic(uintptr_t) handler_before;
static _Atomic bool takes_info;

static void on_interrupt(int signal, siginfo_t *info, void *context)
{
	uintptr_t next = atomic_load(&handler_before);

	gate_cancel(CANCEL_NS);
	asks_wake_all();
	if (atomic_load(&takes_info))
		((void (*)(int, siginfo_t *, void *))next)(signal, info, context);
	else
		((void (*)(int))next)(signal);
}

static bool is_ours(const struct sigaction *action)
{
	return action->sa_flags & SA_SIGINFO && action->sa_sigaction == on_interrupt;
}

/* A handler of one use would be taken off by the kernel before it runs.  */
static bool is_handled(const struct sigaction *action)
{
	return action->sa_flags & SA_SIGINFO ||
	       (action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN && action->sa_handler != SIG_ERR);
}

static void put_before(void)
{
	struct sigaction now, ours;

	if (sigaction(SIGINT, NULL, &now) != 0 || !is_handled(&now) || now.sa_flags & (int)SA_RESETHAND || is_ours(&now))
		return;
	before = now;
	atomic_store(&takes_info, before.sa_flags & SA_SIGINFO);
	atomic_store(&handler_before, before.sa_flags & SA_SIGINFO ? (uintptr_t)before.sa_sigaction
								   : (uintptr_t)before.sa_handler);
	ours = before;
	ours.sa_flags |= SA_SIGINFO;
	ours.sa_sigaction = on_interrupt;
	sigaction(SIGINT, &ours, NULL);
}

/* Unless the program has set another meanwhile.  */
static void take_away(void)
{
	struct sigaction now;

	if (sigaction(SIGINT, NULL, &now) == 0 && is_ours(&now))
		sigaction(SIGINT, &before, NULL);
}

void interrupts_watch(void)
{
	pthread_mutex_lock(&watchers_lock);
	if (watchers++ == 0)
		put_before();
	pthread_mutex_unlock(&watchers_lock);
}

void interrupts_look(void)
{
	pthread_mutex_lock(&watchers_lock);
	put_before();
	pthread_mutex_unlock(&watchers_lock);
}

void interrupts_leave(void)
{
	pthread_mutex_lock(&watchers_lock);
	if (--watchers == 0)
		take_away();
	pthread_mutex_unlock(&watchers_lock);
}

void interrupts_reset_in_child(void)
{
	pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

	memcpy(&watchers_lock, &fresh, sizeof(fresh));
	if (watchers)
		take_away();
	watchers = 0;
}
