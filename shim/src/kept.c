#include "kept.h"

#include "blocks.h"
#include "checkpoint.h"
#include "clock.h"
#include "contexts.h"
#include "copies.h"
#include "driver.h"
#include "gate.h"
#include "host_memory.h"
#include "log.h"
#include "lots.h"
#include "mover.h"
#include "moving.h"
#include "shim.h"
#include "slabs.h"

/* Kept memory goes when less than this is left beside it.  */
#define KEEP_WHILE_LEFT (4 * host_memory_reserve())

void kept_trim(uint64_t keep)
{
	uint64_t have = slabs_bytes();
	struct copy *list = have > keep ? blocks_take_kept_copies(have - keep) : NULL;
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	while (list) {
		struct copy *copy = list;

		list = copy->next;
		copy_drop(copy);
	}
	driver.cuThreadExchangeStreamCaptureMode(&mode);
	slabs_release_unused();
	driver.cuThreadExchangeStreamCaptureMode(&mode);
	driver.cuCtxSetCurrent(NULL);
	log_line("trimmed: %zu of %llu bytes of host memory kept", slabs_bytes(), (unsigned long long)have);
}

bool kept_memory_is_needed(void)
{
	return slabs_bytes() > slots_bytes() / 2 && host_memory_left() < KEEP_WHILE_LEFT;
}

/* Whoever would end the context meanwhile steps aside.  */
void kept_prepare_lots(bool (*stop)(void))
{
	struct context *context = contexts_first();
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	unsigned aside;

	while (context && !(context->handle && context->ready))
		context = context->next;
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
