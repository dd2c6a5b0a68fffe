#include "mover/retained_memory.h"

#include "base/log.h"
#include "base/monotonic_futex.h"
#include "driver/real_driver.h"
#include "gate/gate.h"
#include "gpu/contexts.h"
#include "host/bounce_ring.h"
#include "host/host_copy.h"
#include "host/lent_memory.h"
#include "host/memory_limits.h"
#include "host/packs/memory_packs.h"
#include "host/slabs.h"
#include "memory/blocks/block.h"
#include "mover/internal.h"
#include "mover/mover.h"
#include "state/depth.h"
#include "state/shim_state.h"

/* Kept memory goes when less than this is left beside it.  */
#define KEEP_WHILE_LEFT (4 * HOST_MEMORY_RESERVE)
/* Slabs: a GiB, for which the driver takes some 10 MiB.  */
#define REGISTERED_A_LOOK 32

uint64_t retained_bytes(void)
{
	return slabs_bytes() + staging_bytes() + (shim_is_parked() ? 0 : memory_packs_bytes());
}

struct taking {
	struct copy *list; /* linked by `next` */
	uint64_t bytes, most;
};

static void take(struct copy **copy, void *what)
{
	struct taking *taking = what;

	if (taking->bytes < taking->most)
		copy_take(copy, &taking->list, &taking->bytes);
}

bool retained_trim(uint64_t keep)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	struct taking taking = {0};
	uint64_t before = retained_bytes(), have;
	bool done = true;

	driver.cuThreadExchangeStreamCaptureMode(&mode);
	if (before > keep)
		done = staging_trim(); /* the least to make anew */
	driver.cuThreadExchangeStreamCaptureMode(&mode);
	if (retained_bytes() > keep)
		forget_places(true);
	have = retained_bytes();
	taking.most = have > keep ? have - keep : 0;
	blocks_see_retained_copies(take, &taking);
	copies_drop(taking.list);
	driver.cuThreadExchangeStreamCaptureMode(&mode);
	done = slabs_release_unused() && done;
	driver.cuThreadExchangeStreamCaptureMode(&mode);
	driver.cuCtxSetCurrent(NULL);
	if (done)
		log_line("trimmed: %llu of %llu bytes of host memory kept", (unsigned long long)retained_bytes(),
			 (unsigned long long)before);
	return done;
}

bool retained_give_back_freed(void)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	size_t before = slabs_bytes();
	bool out = checkpoint_is_out(); /* the driver would not come back */

	if (out)
		blocks_give_up_doomed_copies();
	else
		blocks_reap(false); /* what was freed while the mover was at work */
	if (!slabs_any_unused())
		return false;
	if (!out)
		driver.cuThreadExchangeStreamCaptureMode(&mode);
	slabs_release_unused();
	if (!out) {
		driver.cuThreadExchangeStreamCaptureMode(&mode);
		driver.cuCtxSetCurrent(NULL);
	}
	return slabs_bytes() != before;
}

bool retained_memory_is_needed(void)
{
	/* Lots are not charged to this process's control groups: given back, they would leave it no more.  */
	uint64_t own = retained_bytes() - slabs_lot_bytes(), left = own ? host_memory_left() : machine_memory_left();

	return retained_bytes() > slots_bytes() / 2 && left < KEEP_WHILE_LEFT;
}

/* The first context that is ready for copies; NULL: none.  */
static struct context *ready_context(void)
{
	struct context *context = contexts_first();

	while (context && !(context->handle && context->ready))
		context = context->next;
	return context;
}

void retained_forget_lots(void)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	if (checkpoint_is_out())
		return;
	driver.cuThreadExchangeStreamCaptureMode(&mode);
	slabs_release_forgotten();
	driver.cuThreadExchangeStreamCaptureMode(&mode);
	driver.cuCtxSetCurrent(NULL);
}

/* A thread that would end the context meanwhile steps aside.  */
void retained_prepare_lots(bool (*stop)(void))
{
	struct context *context = ready_context();
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	unsigned aside;

	if (!context || shim_state() != AFFINODE_STATE_RESIDENT || !lots_available())
		return;
	if (gate_close(MS_NS) == 0) {
		aside = mover_steps_aside();
		mover_set_copying(true);
		gate_open();
		driver.cuThreadExchangeStreamCaptureMode(&mode);
		while (!stop() && mover_steps_aside() == aside)
			if (!slabs_prepare_lot(checkpoint_is_possible() ? NULL : context->handle))
				break;
		driver.cuThreadExchangeStreamCaptureMode(&mode);
		mover_set_copying(false);
	}
}

bool retained_register_contents(bool (*stop)(void))
{
	struct context *context = ready_context();
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	bool more;

	/* When a context comes back to the GPU the driver must find again what is registered. And what the driver keeps beside
	 * registered memory is the machine's.  */
	if (!shim_is_parked() || !context || checkpoint_is_possible() || checkpoint_is_out() ||
	    machine_memory_left() < KEEP_WHILE_LEFT || !contexts_keep())
		return false;
	driver.cuThreadExchangeStreamCaptureMode(&mode);
	more = slabs_register_some(context->handle, REGISTERED_A_LOOK, stop);
	driver.cuThreadExchangeStreamCaptureMode(&mode);
	contexts_let_end();
	return more;
}
