/* Parking. Memory is released only when the host has all of it and nothing has changed since; until then the way back
 * is to open the gate.
 *
 * The gate is closed with the GPU idle behind it, the calls made so far are noted, and all memory is digested. Where
 * the host has it all from the last park, it is released there and then. Else the gate opens again, and what the host
 * lacks is copied beside the application. Any call of the application's ends that at once, without having waited. The
 * gate is closed a second time: no call since the first closing proves that the application has changed nothing, and a
 * second digest that devices and calls past the shim have not.
 *
 * One that preempts (AFFINODE_MOVE_PREEMPT) closes the gate once, with work under way, and keeps it closed: no call
 * ends it, and new calls wait until the process has its turn again.
 *
 * The last of the copies are made behind the gate, while what was copied before is digested once more and released.
 *
 * One that streams (AFFINODE_MOVE_STREAM) copies behind the gate that it has closed for the second time, and releases as it goes
 * (streaming_out.c). What another one has left on the GPU it parks behind the gate that is closed still.  */
#include <errno.h>
#include <stdio.h>

#include "base/log.h"
#include "base/monotonic_futex.h"
#include "driver/real_driver.h"
#include "gate/gate.h"
#include "gpu/contexts.h"
#include "host/lent_memory.h"
#include "host/memory_limits.h"
#include "host/slabs.h"
#include "memory/device_writes.h"
#include "memory/managed_memory.h"
#include "memory/pool_trim.h"
#include "mover/copying/copying_out.h"
#include "mover/internal.h"
#include "mover/copying/move_plan.h"
#include "mover/streaming_out.h"
#include "state/depth.h"
#include "state/shim_state.h"
#include "state/status_page.h"

#define DRAIN_NS (100 * MS_NS)
/* A preemption waits that long for the calls under way while it keeps no call waiting, and then for the GPU's work.  */
#define NEXT_CALL_NS (2 * S_NS)
#define REST_NS (2 * S_NS)
#define REST_POLL_NS MS_NS

static unsigned waiting_at_start;
static uint64_t calls_at_start;
static _Atomic bool preempting; /* new calls wait and end nothing */

/* Frees change nothing: what is freed meanwhile goes when the mover is done. Those that cannot be put off step
 * aside.  */
static uint64_t calls_made(void)
{
	uint64_t calls[AFFINODE_CLASSES], sum = mover_steps_aside();

	gate_sum_calls(calls);
	for (int i = AFFINODE_CLASS_LAUNCH; i < AFFINODE_CLASSES; i++)
		sum += calls[i];
	return sum;
}

static bool call_came(void)
{
	if (atomic_load(&gate.dying) || mover_is_aborted() || shim_is_unparkable())
		return true;
	return !atomic_load(&preempting) &&
	       (gate_calls_waiting() > waiting_at_start || calls_made() != calls_at_start);
}

static bool is_revoked(struct moved *moved)
{
	outcome_is(moved, AFFINODE_REVOKED, REASON_CALL_CAME);
	return false;
}

/* With the gate closed: NO_REASON, or what was in the way, with the gate open again.  */
static enum reason synchronise_or_open(enum reason why)
{
	if (!why)
		return mover_synchronise_bounded() == 0 ? NO_REASON : REASON_GPU_COMPUTES;
	gate_open();
	return why;
}

/* Close the gate with the GPU idle behind it; NO_REASON, or what was in the way, with the gate open again.  */
static enum reason close_gate_on_idle_gpu(void)
{
	enum reason why = gpu_busy();

	if (why)
		return why;
	if (gate_close(DRAIN_NS) != 0)
		return REASON_CALL_IN_PROGRESS;
	mover_set_copying(false); /* a call that steps aside may be what the GPU waits for */
	/* A capture or a launch may have begun between the look and the closing.  */
	return synchronise_or_open(gpu_busy());
}

/* Close the gate although the application is at work: at its next call, and when what was submitted is done. Both are
 * waited for within bounds, since either may be waiting for a call that the gate now keeps.  */
static enum reason close_gate_on_working_gpu(void)
{
	enum reason why = captures_open() ? REASON_CAPTURE_OPEN : NO_REASON;
	uint64_t until;

	if (why)
		return why;
	if (gate_close_at_next_call(NEXT_CALL_NS, DRAIN_NS) != 0)
		return REASON_CALL_IN_PROGRESS;
	until = clock_ns() + REST_NS;
	while ((why = gpu_busy()) && clock_ns() < until && !captures_open() && !call_came())
		clock_sleep_ns(REST_POLL_NS);
	return synchronise_or_open(why);
}

static bool all_contexts_ready(void)
{
	for (struct context *context = contexts_first(); context; context = context->next)
		if (context->handle && !context->ready && blocks_are_in(context))
			return false;
	return true;
}

struct look {
	struct survey *survey;
	CUresult result;
};

static void read_memory(void *data)
{
	struct look *look = data;

	look->result = survey_digest(look->survey, 0, look->survey->item_count);
}

/* See what is in the memory behind the closed gate. One that preempts has all the time that it takes.  */
static bool digest_behind_gate(struct moved *moved, struct survey *survey)
{
	struct look look = {.survey = survey};
	uint64_t begin = clock_ns();
	int late = 0;

	if (call_came()) /* who waited before the reading is no reason to end it */
		return is_revoked(moved);
	if (moved->move.kind == MOVE_PREEMPT)
		read_memory(&look);
	else
		late = mover_read_bounded(read_memory, &look);
	log_line("park: digested behind the gate in %.1f ms", (double)(clock_ns() - begin) / 1e6);
	if (look.result != CUDA_SUCCESS)
		outcome_is(moved, AFFINODE_FAILED, REASON_NOT_READ);
	else if (late)
		outcome_is(moved, AFFINODE_REVOKED, REASON_CALL_CAME);
	return !late && look.result == CUDA_SUCCESS;
}

/* What a park that hands over begins with (protocol.h).  */
static size_t slots_to_begin_with(const struct survey *survey)
{
	size_t most = AFFINODE_WINDOW_BYTES;

	for (size_t i = 0; i < survey->block_count; i++)
		if (block_part_begins(survey->blocks[i], 1) > most)
			most = block_part_begins(survey->blocks[i], 1);
	return most / CHUNK_BYTES;
}

/* Host memory for what is to be copied. Else *in_all: what all of it takes.  */
static int make_slabs(const struct moved *moved, const struct survey *survey, bool (*stop)(void), uint64_t *in_all)
{
	struct slab_order order = slabs_for_copies(survey, in_all);
	uint64_t begin = clock_ns();
	int made;

	if (move_hands_over(&moved->move) && slots_to_begin_with(survey) < order.at_least)
		order.at_least = slots_to_begin_with(survey);
	order.budget = moved->move.budget ? moved->move.budget : UINT64_MAX;
	order.stop = stop;
	/* The driver would pin again at the way back whatever is pinned, at 45 GiB/s, before the first byte is
	 * copied. And in an exchange it would take more time than copies by the ring cost; it is done when the process is
	 * parked.  */
	if (moved->leaves || move_streams(&moved->move))
		order.context = NULL;
	made = slabs_make(&order);
	log_line("park: host memory made ready in %.1f ms", (double)(clock_ns() - begin) / 1e6);
	return made;
}

static size_t mib(uint64_t bytes)
{
	return (size_t)(bytes >> 20);
}

static void host_memory_is_short(struct moved *moved, const struct survey *survey, uint64_t in_all)
{
	uint64_t needs = slots_needed(survey, 0, survey->item_count) * CHUNK_BYTES;
	uint64_t has = slots_free() * CHUNK_BYTES + lots_available() * SLAB_BYTES;

	outcome_is(moved, AFFINODE_NO_HOST_ROOM, REASON_HOST_MEMORY_SHORT);
	if (needs > has && moved->move.budget)
		snprintf(moved->text, sizeof(moved->text), "%s: of %zu MiB %zu are there, and %zu more may be taken",
			 reason_words(REASON_HOST_MEMORY_SHORT), mib(needs), mib(has), mib(moved->move.budget));
	moved->bytes = in_all;
}

/* With the gate open: copy what the host does not have yet; while streaming, have memory for the copies.  */
static bool copy_beside_application(struct moved *moved, struct survey *survey)
{
	uint64_t in_all;
	int made = make_slabs(moved, survey, call_came, &in_all);
	CUresult result;

	if (made == 0)
		result = move_streams(&moved->move) ? CUDA_SUCCESS : copy_all_out(survey, call_came, &moved->copied);
	else
		result = made == -EAGAIN ? CUDA_ERROR_NOT_READY : CUDA_ERROR_OUT_OF_MEMORY;
	if (result == CUDA_SUCCESS)
		return true;
	if (result == CUDA_ERROR_NOT_READY) {
		outcome_is(moved, AFFINODE_REVOKED, REASON_CALL_CAME);
	} else if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		host_memory_is_short(moved, survey, in_all);
	} else {
		outcome_is(moved, AFFINODE_FAILED, REASON_NOT_COPIED_OUT);
	}
	return false;
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

/* The host gets what it lacks, and the gate is closed again.  */
static bool complete_copies(struct moved *moved, struct survey *survey)
{
	bool preempts = moved->move.kind == MOVE_PREEMPT;
	enum reason why;

	if (!preempts) {
		mover_set_copying(true);
		gate_open();
	}
	if (!copy_beside_application(moved, survey))
		return false;
	/* What was submitted past the shim meanwhile is done before the memory is digested for the last time.  */
	why = preempts ? synchronise_or_open(NO_REASON) : close_gate_on_idle_gpu();
	if (why)
		outcome_is(moved, AFFINODE_BUSY, why);
	return !why;
}

/* How many of the first items are copied behind the closed gate, while the others are released (streaming_out.c). Where
 * nothing is to be waited for and the context stays, that is faster for some of them.  */
static size_t items_to_stream(const struct move *move, const struct survey *survey)
{
	if (move_streams(move))
		return survey->item_count;
	return move->kind == MOVE_PARK && !move->in_two_steps ? stream_leave_some(survey) : 0;
}

/* From the closed gate to the closed gate: the host has all but the first `to_stream` items. What was digested first counts if nothing
 * could change since: if the gate has stayed closed, and no managed memory moved.  */
static bool prepare_to_release(struct moved *moved, struct survey *survey, size_t *to_stream)
{
	enum reason why = NO_REASON;
	bool is_known;

	if (!digest_behind_gate(moved, survey))
		return false;
	*to_stream = items_to_stream(&moved->move, survey);
	if (*to_stream && !move_streams(&moved->move))
		survey->lanes[0].at = *to_stream;
	is_known = host_has_all(survey);
	if (!is_known && !complete_copies(moved, survey))
		return false;
	if (!call_came() && managed_prefetch_out(call_came))
		is_known = false;
	if (call_came())
		return is_revoked(moved);
	/* Some that are left for later are digested again with the others, window by window.  */
	if (!is_known && (move_streams(&moved->move) || !*to_stream) && !digest_behind_gate(moved, survey))
		return false;
	if (!*to_stream) {
		moved->zeros = settle_items(survey, 0, survey->item_count);
		why = host_has_all(survey) ? NO_REASON : REASON_WRITTEN_TO;
	}
	if (!why)
		why = device_writes_reason(true);
	if (why)
		outcome_is(moved, AFFINODE_BUSY, why);
	return !why;
}

/* The controller is told what copies lack of host memory (protocol.h).  */
static bool wait_for_commit(struct moved *moved, const struct survey *survey)
{
	size_t needed = slots_needed(survey, 0, survey->item_count), have = slots_free();
	bool goes_on;

	moved->bytes = needed > have ? (needed - have) * CHUNK_BYTES : 0;
	goes_on = mover_wait_for_commit(moved);
	moved->bytes = 0;
	return goes_on;
}

/* With the gate closed. True: parked.  */
static bool give_up_memory(struct moved *moved, struct survey *survey)
{
	size_t to_stream;

	if (!prepare_to_release(moved, survey, &to_stream))
		return false;
	if (call_came())
		return is_revoked(moved);
	if (moved->move.in_two_steps && !wait_for_commit(moved, survey))
		return false;
	if (to_stream)
		return stream_out(moved, survey, to_stream);
	release_all(moved, survey);
	return true;
}

/* With nothing of what can be moved left on the GPU.  */
static void become_parked(void)
{
	blocks_reap(false);
	pools_trim();
	slabs_release_unused();
	driver.cuCtxSetCurrent(NULL);
	blocks_changed();
	page_set_depth(AFFINODE_DEPTH_MEMORY);
	shim_move_state(AFFINODE_STATE_PARKING, AFFINODE_STATE_PARKED);
}

static void park_with(struct moved *moved, struct survey *survey)
{
	bool parked;

	shim_move_state(AFFINODE_STATE_RESIDENT, AFFINODE_STATE_PARKING);
	moved->leaves = moved->move.kind == MOVE_PARK_CONTEXT && !depth_moves->objection();
	parked = give_up_memory(moved, survey);
	survey_end(survey);
	mover_set_copying(false);
	driver.cuCtxSetCurrent(NULL);
	if (!parked) { /* what was freed meanwhile may still be used by work that runs: free_what_is_left */
		gate_open();
		shim_move_state(AFFINODE_STATE_PARKING, AFFINODE_STATE_RESIDENT);
		return;
	}
	become_parked();
	if (moved->move.kind == MOVE_PARK_CONTEXT)
		depth_moves->out(false, moved->text, sizeof(moved->text)); /* else at memory depth, and the text says why */
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

static bool is_dying(void)
{
	return atomic_load(&gate.dying);
}

static void park_the_rest(struct moved *moved, struct survey *survey)
{
	uint64_t in_all;

	if (survey_digest(survey, 0, survey->item_count) != CUDA_SUCCESS)
		return outcome_is(moved, AFFINODE_FAILED, REASON_NOT_READ);
	if (!host_has_all(survey) && make_slabs(moved, survey, is_dying, &in_all) != 0)
		return host_memory_is_short(moved, survey, in_all);
	stream_out(moved, survey, survey->item_count);
}

/* Of a process that is parked in part. The gate is closed, and calls that wait at it wait for the end of this, too.  */
static void park_from_parked(struct moved *moved)
{
	struct survey survey;

	if (survey_begin(&survey, true) != 0)
		outcome_is(moved, AFFINODE_NO_HOST_ROOM, REASON_HOST_MEMORY_SHORT);
	else if (survey.item_count == 0)
		outcome_is(moved, AFFINODE_NOTHING, REASON_FREED_ALREADY);
	else if (!shim_move_state(AFFINODE_STATE_PARKED, AFFINODE_STATE_PARKING) &&
		 !shim_move_state(AFFINODE_STATE_QUEUED, AFFINODE_STATE_PARKING))
		outcome_is(moved, AFFINODE_NOTHING, REASON_NOT_FREED);
	else
		park_the_rest(moved, &survey);
	survey_end(&survey);
	blocks_reap(false);
	slabs_release_unused();
	driver.cuCtxSetCurrent(NULL);
	blocks_changed();
	shim_move_state(AFFINODE_STATE_PARKING, AFFINODE_STATE_PARKED);
}

bool park_empty(struct moved *moved)
{
	enum reason why;

	why = shim_is_unparkable() ? REASON_UNMOVABLE : device_writes_reason(true);
	if (!why && (shim_state() != AFFINODE_STATE_RESIDENT || blocks_resident_bytes()))
		why = REASON_NOT_FREED;
	if (why) {
		outcome_is(moved, AFFINODE_REFUSED, why);
		return false;
	}
	shim_register_exit(); /* before: an exit that begins while the gate is closed must not wait at it */
	why = close_gate_on_idle_gpu();
	if (why) {
		outcome_is(moved, AFFINODE_BUSY, why);
		return false;
	}
	if (blocks_resident_bytes()) { /* allocated since */
		gate_open();
		outcome_is(moved, AFFINODE_REFUSED, REASON_NOT_FREED);
		return false;
	}
	shim_move_state(AFFINODE_STATE_RESIDENT, AFFINODE_STATE_PARKING);
	become_parked();
	return true;
}

void resume_empty(void)
{
	page_set_depth(AFFINODE_DEPTH_NONE);
	/* A call that comes has it QUEUED meanwhile.  */
	while (!shim_move_state(AFFINODE_STATE_PARKED, AFFINODE_STATE_RESIDENT) &&
	       !shim_move_state(AFFINODE_STATE_QUEUED, AFFINODE_STATE_RESIDENT))
		;
	gate_open();
}

void park(struct moved *moved)
{
	struct survey survey;
	enum reason why;

	if (shim_is_parked() && move_streams(&moved->move) && !moved->move.in_two_steps && !checkpoint_is_out())
		return park_from_parked(moved);
	if (shim_state() != AFFINODE_STATE_RESIDENT)
		return outcome_is(moved, AFFINODE_NOTHING, REASON_FREED_ALREADY);
	if (blocks_resident_bytes() == 0)
		return outcome_is(moved, AFFINODE_NOTHING, REASON_NOTHING_TO_MOVE);
	if (shim_is_unparkable())
		return outcome_is(moved, AFFINODE_FAILED, REASON_UNMOVABLE);
	why = device_writes_reason(true);
	if (why)
		return outcome_is(moved, AFFINODE_NOTHING, why);
	if (!all_contexts_ready())
		return outcome_is(moved, AFFINODE_BUSY, REASON_CONTEXT_NOT_READY);
	waiting_at_start = gate_calls_waiting();
	atomic_store(&preempting, moved->move.kind == MOVE_PREEMPT);
	shim_register_exit(); /* before: an exit that begins while the gate is closed must not wait at it */
	why = moved->move.kind == MOVE_PREEMPT ? close_gate_on_working_gpu() : close_gate_on_idle_gpu();
	if (why)
		return outcome_is(moved, AFFINODE_BUSY, why);
	calls_at_start = calls_made();
	blocks_reap(false);
	if (survey_begin(&survey, true) == 0)
		return park_with(moved, &survey);
	survey_end(&survey);
	driver.cuCtxSetCurrent(NULL);
	gate_open();
	outcome_is(moved, AFFINODE_NO_HOST_ROOM, REASON_HOST_MEMORY_SHORT);
}
