#include "state/shim_state.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/environment.h"
#include "base/log.h"
#include "base/per_process.h"
#include "state/controller.h"
#include "state/status_page.h"

static _Atomic bool on;
static _Atomic uint32_t state;
static _Atomic int unparkable, disabled = -1;
static void (*exit_handler)(int, void *);
static OF_PROCESS pthread_mutex_t registration = PTHREAD_MUTEX_INITIALIZER;

/* musl has neither; nor is there a driver for it. The shim must start all the same, in programs of a musl distribution that
 * a kernel runs.  */
#pragma weak on_exit
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *object) __attribute__((weak));
extern void *__dso_handle __attribute__((visibility("hidden")));

static bool libc_will_do(void)
{
	return on_exit && __register_atfork;
}

bool shim_is_disabled(void)
{
	int known = atomic_load_explicit(&disabled, memory_order_relaxed);

	if (known < 0) {
		const char *value = environment_now(AFFINODE_ENV_DISABLE);

		known = !libc_will_do() || (value && value[0] && !(value[0] == '0' && !value[1]));
		atomic_store(&disabled, known);
	}
	return known;
}

bool shim_is_on(void)
{
	return atomic_load_explicit(&on, memory_order_acquire);
}

void shim_set_on(bool now)
{
	atomic_store(&on, now);
}

enum affinode_state shim_state(void)
{
	return atomic_load(&state);
}

bool shim_is_parked(void)
{
	uint32_t now = atomic_load(&state);

	return now == AFFINODE_STATE_PARKED || now == AFFINODE_STATE_QUEUED;
}

bool shim_move_state(enum affinode_state from, enum affinode_state to)
{
	uint32_t expected = from;

	if (!atomic_compare_exchange_strong(&state, &expected, to))
		return false;
	page_take_state();
	link_wake();
	return true;
}

void shim_begin_state(enum affinode_state now)
{
	atomic_store(&state, now);
}

void shim_give_up_parking(const char *why)
{
	if (atomic_exchange(&unparkable, 1))
		return;
	page_set_flags(AFFINODE_PAGE_UNPARKABLE, 0);
	log_line("never to be parked: %s", why);
}

bool shim_is_unparkable(void)
{
	return atomic_load(&unparkable);
}

void shim_set_exit_handler(void (*handler)(int status, void *unused))
{
	exit_handler = handler;
}

void shim_register_exit(void)
{
	pthread_mutex_lock(&registration);
	on_exit(exit_handler, NULL);
	pthread_mutex_unlock(&registration);
}

/* Do what pthread_atfork does, whose symbol would not be weak.  */
void shim_register_fork(void (*in_child)(void))
{
	__register_atfork(shim_hold_registration, shim_release_registration, in_child, __dso_handle);
}

void shim_hold_registration(void)
{
	pthread_mutex_lock(&registration);
}

void shim_release_registration(void)
{
	pthread_mutex_unlock(&registration);
}
