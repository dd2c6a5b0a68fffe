/* Parking. What was copied is released only when everything was copied and nothing has changed since; until then the way
 * back is to open the gate.
 *
 * The gate is closed twice, for a moment each time. At the first, the GPU is idle and the calls made so far are noted; then
 * the gate opens again and everything is read and copied beside the application. Any call of the application's ends
 * that at once, without having waited. At the second, no call since the first proves that nothing has changed.
 *
 * One that preempts (AFFINODE_MOVE_PREEMPT) closes the gate once, with work under way, and keeps it closed: nobody ends it,
 * and who comes waits until the process has its turn again.  */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "clock.h"
#include "contexts.h"
#include "driver.h"
#include "gate.h"
#include "host_memory.h"
#include "log.h"
#include "managed.h"
#include "moving.h"
#include "page.h"
#include "pools.h"
#include "shim.h"
#include "slabs.h"
#include "survey.h"
#include "transfers.h"

#define DRAIN_NS (100 * MS_NS)
/* A preemption waits that long for the calls under way while it keeps nobody waiting, and then for the GPU's work.  */
#define NEXT_CALL_NS (2 * S_NS)
#define REST_NS (2 * S_NS)
#define REST_POLL_NS MS_NS

static unsigned waiting_at_start;
static uint64_t calls_at_start;
static _Atomic bool preempting; /* who comes waits and ends nothing */

/* Frees change nothing: what is freed meanwhile goes when the mover is done. Those that cannot be put off step aside.  */
static uint64_t calls_made(void)
{
	uint64_t calls[AFFINODE_CLASSES], sum = mover_steps_aside();

	gate_sum_calls(calls);
	for (int i = AFFINODE_CLASS_LAUNCH; i < AFFINODE_CLASSES; i++)
		sum += calls[i];
	return sum;
}

static bool somebody_came(void)
{
	if (atomic_load(&gate.dying) || mover_is_aborted())
		return true;
	return !atomic_load(&preempting) &&
	       (gate_calls_waiting() > waiting_at_start || calls_made() != calls_at_start);
}

/* Close the gate with the GPU idle behind it; NULL, or what was in the way, with the gate open again.  */
static const char *close_gate_on_idle_gpu(void)
{
	const char *why = gpu_busy();

	if (why)
		return why;
	if (gate_close(DRAIN_NS) != 0)
		return "a CUDA call is in progress";
	/* A capture or a launch may have begun between the look and the closing.  */
	why = gpu_busy();
	if (why) {
		gate_open();
		return why;
	}
	return mover_synchronise_bounded() ? NULL : "the GPU is still computing";
}

/* Close the gate although the application is at work: at its next call, and when what was submitted is done. Both are
 * waited for within bounds, since either may be waiting for a call that the gate now keeps.  */
static const char *close_gate_on_working_gpu(void)
{
	const char *why = captures_open() ? "a CUDA graph is being captured" : NULL;
	uint64_t until;

	if (why)
		return why;
	shim_register_exit(); /* an exit that begins while the gate is closed must not wait at it */
	if (gate_close_at_next_call(NEXT_CALL_NS, DRAIN_NS) != 0)
		return "a CUDA call is in progress";
	until = clock_ns() + REST_NS;
	while ((why = gpu_busy()) && clock_ns() < until && !captures_open() && !somebody_came())
		clock_sleep_ns(REST_POLL_NS);
	if (why) {
		gate_open();
		return why;
	}
	return mover_synchronise_bounded() ? NULL : "the GPU is still computing";
}

static bool all_contexts_ready(void)
{
	for (struct context *context = contexts_first(); context; context = context->next)
		if (context->handle && !context->ready && blocks_are_in(context))
			return false;
	return true;
}

static bool is_unchanged(const struct item *item)
{
	const struct chunk *chunk = item_chunk(item);

	return item->digestible && chunk->kind == CHUNK_HELD && chunk->digested &&
	       memcmp(&chunk->digest, &item->now.digest, sizeof(chunk->digest)) == 0;
}

static bool is_zero(const struct item *item)
{
	return item->digestible && item->now.zero;
}

static bool needs_copy(const struct item *item)
{
	return !is_zero(item) && !is_unchanged(item);
}

/* Slots for this item and those after it that lie side by side and lack one too.  */
static CUresult give_slots(struct item *item, const struct item *end)
{
	size_t want = 1;
	struct host_slot slot;
	size_t got;

	while (item + want < end && item_follows(item + want - 1, item + want) && needs_copy(item + want) &&
	       !chunk_has_slot(item_chunk(item + want)))
		want++;
	got = slots_take(want, &slot);
	if (got == 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < got; i++, slot.index++) {
		struct chunk *chunk = item_chunk(item + i);

		chunk->slot = slot;
		chunk->kind = CHUNK_STALE;
	}
	return CUDA_SUCCESS;
}

static bool extends(const struct stretch *stretch, const struct item *item)
{
	const struct host_slot *slot = &item_chunk(item)->slot;

	return stretch->bytes && item->now.address == stretch->device + stretch->bytes &&
	       slot->slab == stretch->host.slab && slot->index * CHUNK_BYTES == stretch->host.index * CHUNK_BYTES +
										  stretch->bytes;
}

/* Begin the lane's next copy. *done: nothing is left in it.  */
static CUresult copy_out_next(struct survey *survey, struct lane *lane, uint64_t *copied, bool *done)
{
	struct stretch stretch = {.context = lane->context};
	struct item *item, *end = survey->items + lane->end;
	CUresult result;

	for (; lane->at < lane->end; lane->at++) {
		item = &survey->items[lane->at];
		if (!needs_copy(item)) {
			if (stretch.bytes)
				break;
			continue;
		}
		if (!chunk_has_slot(item_chunk(item))) {
			if (stretch.bytes)
				break;
			result = give_slots(item, end);
			if (result != CUDA_SUCCESS)
				return result;
		}
		if (stretch.bytes && !extends(&stretch, item))
			break;
		if (!stretch.bytes) {
			stretch.device = item->now.address;
			stretch.host = item_chunk(item)->slot;
		}
		item_chunk(item)->kind = CHUNK_STALE; /* until all of it is there */
		stretch.bytes += item_bytes(item);
	}
	*done = lane->at == lane->end;
	*copied += stretch.bytes;
	return transfer_begin(&stretch, true);
}

static CUresult copy_all_out(struct survey *survey, uint64_t *copied)
{
	CUresult result = CUDA_SUCCESS, finished;
	size_t open = survey->lane_count;

	while (open && result == CUDA_SUCCESS) {
		open = 0;
		for (size_t i = 0; i < survey->lane_count && result == CUDA_SUCCESS; i++) {
			bool done = survey->lanes[i].at == survey->lanes[i].end;

			if (!done && somebody_came())
				result = CUDA_ERROR_NOT_READY;
			else if (!done)
				result = copy_out_next(survey, &survey->lanes[i], copied, &done);
			open += !done;
		}
	}
	finished = survey_finish_transfers(survey);
	return result == CUDA_SUCCESS ? finished : result;
}

static struct slab_order order_for(const struct survey *survey, const struct moved *moved, uint64_t *in_all)
{
	uint64_t budget = moved->move.budget;
	struct slab_order order = {.budget = budget ? budget : UINT64_MAX, .node = -1, .stop = somebody_came};

	*in_all = 0;
	for (size_t i = 0; i < survey->item_count; i++) {
		const struct item *item = &survey->items[i];

		*in_all += is_zero(item) ? 0 : CHUNK_BYTES;
		order.slots += needs_copy(item) && !chunk_has_slot(item_chunk(item));
	}
	if (survey->lane_count) {
		order.context = moved->leaves ? NULL : survey->lanes[0].context->handle;
		order.node = survey->lanes[0].context->device->numa_node;
	}
	return order;
}

/* With the gate open: see what is in the memory, and copy what the host does not have yet.  */
static bool copy_beside_application(struct moved *moved, struct survey *survey)
{
	uint64_t in_all, begin = clock_ns(), digested;
	struct slab_order order;
	CUresult result;
	int made;

	pools_trim();
	result = survey_digest(survey);
	if (result != CUDA_SUCCESS) {
		outcome_is(moved, AFFINODE_FAILED, "the driver could not read the GPU's memory");
		return false;
	}
	order = order_for(survey, moved, &in_all);
	digested = clock_ns();
	made = slabs_make(&order);
	log_line("park: digested in %.1f ms, host memory made ready in %.1f ms", (double)(digested - begin) / 1e6,
		 (double)(clock_ns() - digested) / 1e6);
	if (made == 0)
		result = copy_all_out(survey, &moved->copied);
	else
		result = made == -EAGAIN ? CUDA_ERROR_NOT_READY : CUDA_ERROR_OUT_OF_MEMORY;
	if (result == CUDA_SUCCESS)
		return true;
	if (result == CUDA_ERROR_NOT_READY) {
		outcome_is(moved, AFFINODE_REVOKED, "a CUDA call came while parking");
	} else if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		outcome_is(moved, AFFINODE_NO_HOST_ROOM, "host memory is short");
		moved->bytes = in_all;
	} else {
		outcome_is(moved, AFFINODE_FAILED, "the driver could not copy the GPU's memory out");
	}
	return false;
}

/* The copies are what the GPU holds; from here on they are the contents.  */
static void settle_copies(struct moved *moved, struct survey *survey)
{
	for (size_t i = 0; i < survey->item_count; i++) {
		struct item *item = &survey->items[i];
		struct chunk *chunk = item_chunk(item);

		if (is_zero(item)) {
			chunk_drop(chunk);
			chunk->kind = CHUNK_ZERO;
			moved->zeros += CHUNK_BYTES;
		} else {
			chunk->kind = CHUNK_HELD;
		}
		chunk->digest = item->now.digest;
		chunk->digested = item->digestible;
	}
}

static void release_all(struct moved *moved, struct survey *survey)
{
	for (size_t i = 0; i < survey->block_count; i++) {
		struct block *block = survey->blocks[i];

		if (!block->context->handle || driver.cuCtxSetCurrent(block->context->handle) != CUDA_SUCCESS)
			continue;
		/* Else its memory stays, and is filled again at the resume: the program may see only some of it.  */
		block_set_hollow(block, block_unmap(block) != CUDA_SUCCESS);
		moved->bytes += block->hollow ? 0 : block->size;
	}
}

/* At the second closing of the gate. True: parked.  */
static bool give_up_memory(struct moved *moved, struct survey *survey)
{
	const char *why = moved->move.preempts ? NULL : close_gate_on_idle_gpu();

	if (why) {
		outcome_is(moved, AFFINODE_BUSY, why);
		return false;
	}
	if (!somebody_came())
		managed_prefetch_out(somebody_came);
	if (somebody_came() || (moved->move.prepare && !mover_wait_for_commit(moved))) {
		if (moved->status == AFFINODE_OK)
			outcome_is(moved, AFFINODE_REVOKED, "a CUDA call came while parking");
		gate_open();
		return false;
	}
	settle_copies(moved, survey);
	release_all(moved, survey);
	return true;
}

static void park_with(struct moved *moved, struct survey *survey)
{
	bool parked;

	shim_move_state(AFFINODE_STATE_RESIDENT, AFFINODE_STATE_PARKING);
	if (!moved->move.preempts) {
		mover_set_copying(true);
		gate_open();
	}
	shim_register_exit(); /* before: an exit that begins while the gate is closed must not wait at it */
	/* The driver would pin again at the way back whatever is pinned, at 45 GiB/s, before the first byte is copied.  */
	moved->leaves = moved->move.to_context && !checkpoint_objection();
	parked = copy_beside_application(moved, survey) && give_up_memory(moved, survey);
	survey_end(survey);
	mover_set_copying(false);
	driver.cuCtxSetCurrent(NULL);
	if (!parked) { /* what was freed meanwhile may still be used by work that runs: free_what_is_left */
		if (moved->move.preempts)
			gate_open();
		shim_move_state(AFFINODE_STATE_PARKING, AFFINODE_STATE_RESIDENT);
		return;
	}
	blocks_reap(false);
	slabs_release_unused();
	driver.cuCtxSetCurrent(NULL);
	blocks_changed();
	page_set_depth(AFFINODE_DEPTH_MEMORY);
	shim_move_state(AFFINODE_STATE_PARKING, AFFINODE_STATE_PARKED);
	if (moved->move.to_context)
		checkpoint_out(moved->text, sizeof(moved->text)); /* else at memory depth, and the text says why */
}

bool free_what_is_left(void)
{
	if (!blocks_wait_to_be_freed())
		return true;
	if (shim_state() != AFFINODE_STATE_RESIDENT || atomic_load(&gate.dying) || close_gate_on_idle_gpu())
		return false;
	blocks_reap(false);
	driver.cuCtxSetCurrent(NULL);
	gate_open();
	return true;
}

void park(struct moved *moved)
{
	struct survey survey;
	const char *why;

	if (shim_state() != AFFINODE_STATE_RESIDENT)
		return outcome_is(moved, AFFINODE_NOTHING, "already parked");
	if (blocks_resident_bytes() == 0)
		return outcome_is(moved, AFFINODE_NOTHING, "no GPU memory that can be moved");
	if (shim_is_unparkable())
		return outcome_is(moved, AFFINODE_FAILED, "this process cannot be parked");
	if (!all_contexts_ready())
		return outcome_is(moved, AFFINODE_BUSY, "a CUDA context is not ready to be copied from");
	waiting_at_start = gate_calls_waiting();
	atomic_store(&preempting, moved->move.preempts);
	why = moved->move.preempts ? close_gate_on_working_gpu() : close_gate_on_idle_gpu();
	if (why)
		return outcome_is(moved, AFFINODE_BUSY, why);
	calls_at_start = calls_made();
	blocks_reap(false);
	if (survey_begin(&survey, true))
		return park_with(moved, &survey);
	survey_end(&survey);
	driver.cuCtxSetCurrent(NULL);
	gate_open();
	outcome_is(moved, AFFINODE_NO_HOST_ROOM, "host memory is short");
}
