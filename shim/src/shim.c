#include "shim.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "context_depth/allocation_guard.h"
#include "link/requests.h"
#include "gpu/backed.h"
#include "gpu/context_errors.h"
#include "link/drop_caches.h"
#include "context_depth/checkpoint.h"
#include "base/monotonic_futex.h"
#include "gpu/contexts.h"
#include "driver/real_driver.h"
#include "base/environment.h"
#include "gate/gate.h"
#include "context_depth/gpu_lock.h"
#include "link/grant.h"
#include "gate/sigint.h"
#include "ipc/ipc.h"
#include "context_depth/exit_while_out.h"
#include "link/link.h"
#include "base/log.h"
#include "gpu/managed_memory.h"
#include "gpu/app_mappings.h"
#include "mover/mover.h"
#include "link/status_page.h"
#include "gpu/peer_access.h"
#include "gpu/pool_trim.h"
#include "driver/symbol_lookup.h"
#include "gpu/unmovable_bytes.h"

/* How long exit waits for a move under way to stop at its next piece.  */
#define QUIESCE_NS (2 * S_NS)

enum { LIFE_OFF, LIFE_STARTING, LIFE_ON, LIFE_INERT };

static _Atomic int life;
static _Atomic uint32_t state;
static _Atomic int unparkable, simulated, disabled = -1;

bool shim_is_disabled(void)
{
	int known = atomic_load_explicit(&disabled, memory_order_relaxed);

	if (known < 0) {
		const char *value = environment_now(AFFINODE_ENV_DISABLE);

		known = value && value[0] && !(value[0] == '0' && !value[1]);
		atomic_store(&disabled, known);
	}
	return known;
}

bool shim_is_on(void)
{
	return atomic_load_explicit(&life, memory_order_acquire) == LIFE_ON;
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
	page_set_state(to);
	link_wake();
	return true;
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

bool shim_is_simulated(void)
{
	return atomic_load(&simulated);
}

void shim_set_simulated(void)
{
	atomic_store(&simulated, 1);
	page_set_flags(AFFINODE_PAGE_SIMULATED, 0);
}

void shim_set_dying(void)
{
	page_set_flags(AFFINODE_PAGE_DYING, 0); /* before those who wake up look at it */
	gate_set_dying();
	asks_wake_all();
}

/* Once for every park. A move that did not end in that time is waited for no more by those that follow.  */
static void at_exit(int status, void *unused)
{
	static uint64_t until;
	uint64_t now = clock_ns();

	(void)unused;
	if (!shim_is_on())
		return;
	shim_set_dying();
	if (!until)
		until = now + QUIESCE_NS;
	mover_quiesce(now < until ? until - now : 0);
	leaving_begin(status);
}

/* Exit handlers run last in, first out; one registered at each park runs before those of libraries loaded since the
 * last one, which may call CUDA.  */
void shim_register_exit(void)
{
	on_exit(at_exit, NULL);
}

static void in_child(void)
{
	int was = atomic_load(&life);

	/* CUDA does not work in a child of a process that called cuInit: let its calls fail by themselves.  */
	atomic_store(&life, was == LIFE_OFF ? LIFE_OFF : LIFE_INERT);
	atomic_store(&state, AFFINODE_STATE_NONE);
	hooks_reset_in_child();
	thunks_reset_in_child();
	gate_reset_in_child();
	page_reset_in_child();
	caches_reset_in_child();
	link_reset_in_child();
	grant_reset_in_child();
	asks_reset_in_child();
	interrupts_reset_in_child();
	mover_reset_in_child();
	blocks_reset_in_child();
	mappings_reset_in_child();
	contexts_reset_in_child();
	broken_reset_in_child();
	devices_reset_in_child();
	tally_reset_in_child();
	pools_reset_in_child();
	managed_reset_in_child();
	gpu_locks_reset_in_child();
	around_reset_in_child();
	checkpoint_reset_in_child();
	ipc_reset_in_child();
	peers_reset_in_child();
}

static void register_fork(void)
{
	pthread_atfork(NULL, NULL, in_child);
}

void shim_prepare(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, register_fork);
}

/* The threads come up with the first successful cuInit, on the thread that called it: everything that needs the
 * dynamic linker happens here.  */
void shim_start(void)
{
	int off = LIFE_OFF, count = 0;

	if (shim_is_disabled() || !atomic_compare_exchange_strong(&life, &off, LIFE_STARTING))
		return;
	environment_note();
	log_open();
	if (!driver_resolve()) {
		log_line("this driver lacks what is needed to move memory");
		atomic_store(&life, LIFE_INERT);
		return;
	}
	around_own_calls();
	gate_start();
	if (page_create() != 0)
		shim_give_up_parking("no page");
	driver.cuDeviceGetCount(&count);
	for (int i = 0; i < count; i++)
		device_known(i);
	atomic_store(&state, AFFINODE_STATE_RESIDENT);
	page_set_state(AFFINODE_STATE_RESIDENT);
	atomic_store(&life, LIFE_ON);
	checkpoint_start();
	if (mover_start() != 0)
		shim_give_up_parking("no thread for the mover");
	if (link_start() != 0)
		shim_give_up_parking("no thread for the link");
	on_exit(at_exit, NULL);
}
