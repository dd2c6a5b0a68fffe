#include "process/lifecycle.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/environment.h"
#include "base/log.h"
#include "base/monotonic_futex.h"
#include "context_depth/context_depth.h"
#include "driver/real_driver.h"
#include "driver/symbol_finder.h"
#include "gate/gate.h"
#include "gate/sigint.h"
#include "gpu/contexts.h"
#include "gpu/gpu_lock.h"
#include "host/bounce_ring.h"
#include "host/packs/memory_packs.h"
#include "host/packs/spill_file.h"
#include "host/slabs.h"
#include "ipc/export.h"
#include "ipc/ipc.h"
#include "link/drop_caches.h"
#include "link/link.h"
#include "link/requests.h"
#include "memory/blocks/block.h"
#include "mover/copying/copies.h"
#include "mover/copying/digest.h"
#include "mover/mover.h"
#include "state/controller.h"
#include "state/shim_state.h"
#include "state/status_page.h"

/* How long exit waits for a move under way to stop at its next piece.  */
#define QUIESCE_NS (2 * S_NS)

enum { LIFE_OFF, LIFE_STARTING, LIFE_ON, LIFE_INERT };

static _Atomic int life;

/* The bounds of what OF_PROCESS marks, as the linker sets them.  */
extern char __start_affinode_process[] __attribute__((visibility("hidden")));
extern char __stop_affinode_process[] __attribute__((visibility("hidden")));

/* Run at exit, once for every park. A move that did not end in QUIESCE_NS is not waited for again by the calls that follow.  */
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
	if (mover_seize(now < until ? until - now : 0))
		mover_let_go();
	memory_packs_leave();
	leaving_begin(status);
}

static void in_child(void)
{
	int was = atomic_load(&life);

	/* CUDA does not work in a child of a process that called cuInit: let its calls fail by themselves.  */
	atomic_store(&life, was == LIFE_OFF ? LIFE_OFF : LIFE_INERT);
	shim_set_on(false);
	shim_begin_state(AFFINODE_STATE_NONE);
	gpu_locks_close_in_child();
	exports_close_in_child();
	spill_close_in_child();
	memset(__start_affinode_process, 0, (size_t)(__stop_affinode_process - __start_affinode_process));
	gate_begin_again();
	page_begin_again();
	link_begin_again();
	interrupts_begin_again();
	blocks_changed();
	context_depth_begin_again();
}

static void register_fork(void)
{
	shim_register_fork(in_child);
}

void shim_prepare(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, register_fork);
}

static CUresult make_context_ready(struct context *context)
{
	CUresult result = transfers_make_ready(context);

	if (result == CUDA_SUCCESS)
		digest_make_ready(context); /* without it contents are copied all the same */
	return result;
}

static void forget_context(struct context *context)
{
	digest_forget(context);
	staging_forget(context);
}

/* Folders call those below them alone; what they need of one above is given to them here.  */
static void connect_folders(void)
{
	static const struct context_users of_contexts = {make_context_ready, forget_context, slabs_forget_registrations};
	static const struct block_users of_blocks = {mover_is_copying, mover_reap, mover_wake, ipc_block_ends};

	contexts_set_users(&of_contexts);
	blocks_set_users(&of_blocks);
	page_set_sampler(page_take_sample);
	interrupts_wake_also(asks_wake_all);
	shim_set_exit_handler(at_exit);
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
	connect_folders();
	depth_say_if_left_out();
	if (driver_resolve() != 0) {
		log_line("this driver lacks what is needed to move memory");
		atomic_store(&life, LIFE_INERT);
		return;
	}
	context_depth_wrap_own_calls();
	gate_start();
	if (page_create() != 0)
		shim_give_up_parking("no page");
	if (!lookups_come_by())
		shim_give_up_parking("another library's dlsym comes before the shim's and asks libc's: calls pass the shim by");
	driver.cuDeviceGetCount(&count);
	for (int i = 0; i < count; i++)
		device_known(i);
	shim_begin_state(AFFINODE_STATE_RESIDENT);
	page_take_state();
	atomic_store(&life, LIFE_ON);
	shim_set_on(true);
	context_depth_start();
	if (mover_start() != 0)
		shim_give_up_parking("no thread for the mover");
	if (link_start() != 0)
		shim_give_up_parking("no thread for the link");
	shim_register_exit();
}
