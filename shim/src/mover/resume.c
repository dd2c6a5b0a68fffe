/* Resuming, at the closed gate. All or nothing: physical memory is created, mapped, filled and verified against the digests
 * taken at park, and the gate opens when all of that is done for everything. Until then the host copy is the truth, and
 * whatever fails gives all the memory back: but for what a resume that hands over has brought for good (streaming_in.c).  */
#include "base/log.h"
#include "base/monotonic_futex.h"
#include "driver/real_driver.h"
#include "gate/gate.h"
#include "gpu/gpu_lock.h"
#include "host/slabs.h"
#include "mover/copying/copying_in.h"
#include "mover/internal.h"
#include "mover/copying/move_plan.h"
#include "mover/streaming/streaming_in.h"
#include "state/depth.h"
#include "state/shim_state.h"
#include "state/status_page.h"

/* How far one that does not stream has come; blocks in the survey's order.  */
struct arrival {
	struct survey survey;
	size_t created, mapped;
};

/* Physical memory for the next block.  */
static CUresult create_next(struct arrival *arrival)
{
	struct block *block = arrival->survey.blocks[arrival->created];
	CUresult result = use_context_of(block);

	if (result == CUDA_SUCCESS && !block->hollow)
		result = block_create(block);
	if (result == CUDA_SUCCESS)
		arrival->created++;
	return result;
}

static CUresult map_next(struct arrival *arrival)
{
	struct block *block = arrival->survey.blocks[arrival->mapped];
	CUresult result = arrival->created > arrival->mapped ? use_context_of(block) : create_next(arrival);

	if (result == CUDA_SUCCESS)
		result = block_map(block);
	if (result != CUDA_SUCCESS)
		return result;
	block_set_resident(block, true);
	arrival->mapped++;
	return CUDA_SUCCESS;
}

/* Create and map blocks in order, up to and with this one, as far as it is not done yet.  */
static CUresult map_up_to(struct arrival *arrival, size_t last)
{
	while (arrival->mapped <= last) {
		CUresult result = map_next(arrival);

		if (result != CUDA_SUCCESS)
			return result;
	}
	return CUDA_SUCCESS;
}

/* A prepared resume has all its room before it waits for its peers.  */
static CUresult create_and_map_all(struct arrival *arrival)
{
	while (arrival->created < arrival->survey.block_count) {
		CUresult result = create_next(arrival);

		if (result != CUDA_SUCCESS)
			return result;
	}
	return arrival->survey.block_count ? map_up_to(arrival, arrival->survey.block_count - 1) : CUDA_SUCCESS;
}

/* A look before anything is created, so that a resume that cannot succeed takes nothing from others, not for a moment.  */
static CUresult look_for_room(const struct survey *survey)
{
	for (size_t i = 0; i < survey->lane_count; i++) {
		const struct lane *lane = &survey->lanes[i];
		size_t needed = 0, free_bytes, total;

		for (size_t at = lane->begin; at < lane->end; at++)
			needed += survey->items[at].block->hollow ? 0 : item_bytes(&survey->items[at]);
		if (lane->context->handle && driver.cuCtxSetCurrent(lane->context->handle) == CUDA_SUCCESS &&
		    driver.cuMemGetInfo(&free_bytes, &total) == CUDA_SUCCESS && free_bytes < needed)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

/* Undo what was done: the host copies are untouched. What a resume that hands over has given up of them stays where it is.  */
static void give_back(struct arrival *arrival, bool streams, size_t arrived)
{
	survey_finish_transfers(&arrival->survey);
	for (size_t i = arrived; i < (streams ? arrival->survey.block_count : arrival->created); i++) {
		struct block *block = arrival->survey.blocks[i];
		bool is_gone;

		use_context_of(block);
		is_gone = block_keep(block, block->parts_left) == CUDA_SUCCESS;
		/* One that has not grown to its end goes on from there the next time.  */
		block_set_hollow(block, !is_gone && (block->resident || !streams));
		if (block->hollow)
			block_set_resident(block, true);
	}
}

/* Begin to fill the chunks from the lane's place on.  */
static CUresult fill_next(struct arrival *arrival, struct lane *lane)
{
	CUresult result = map_up_to(arrival, arrival->survey.items[lane->at].block_number);

	return result == CUDA_SUCCESS ? copy_in_next(&arrival->survey, &lane->at, lane->end) : result;
}

/* Lanes in turn, so that every GPU's link is at work. Blocks are created and mapped just before they are filled:
 * that goes on beside the copies of those before them.  */
static CUresult fill_all(struct arrival *arrival)
{
	struct survey *survey = &arrival->survey;
	CUresult result = CUDA_SUCCESS, finished;
	size_t open = survey->lane_count;

	while (open && result == CUDA_SUCCESS) {
		open = 0;
		for (size_t i = 0; i < survey->lane_count && result == CUDA_SUCCESS; i++) {
			if (survey->lanes[i].at < survey->lanes[i].end)
				result = fill_next(arrival, &survey->lanes[i]);
			open += survey->lanes[i].at < survey->lanes[i].end;
		}
	}
	finished = survey_finish_transfers(survey);
	return result == CUDA_SUCCESS ? finished : result;
}

static uint64_t bytes_on_disk(const struct survey *survey)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < survey->item_count; i++)
		bytes += item_chunk(&survey->items[i])->kind == CHUNK_SPILLED ? CHUNK_BYTES : 0;
	return bytes;
}

static CUresult bring_back(struct moved *moved, struct arrival *arrival, struct wrong *wrong)
{
	uint64_t begin = clock_ns(), filled;
	CUresult result = look_for_room(&arrival->survey);

	/* A disk is slow: the room that was reserved is seen to be taken at once.  */
	if (result == CUDA_SUCCESS && (moved->move.prepare || moved->copied))
		result = create_and_map_all(arrival);
	if (result == CUDA_SUCCESS && moved->move.prepare && !mover_wait_for_commit(moved))
		return CUDA_ERROR_NOT_READY;
	if (result == CUDA_SUCCESS)
		result = fill_all(arrival);
	filled = clock_ns();
	if (result == CUDA_SUCCESS)
		result = put_right(&arrival->survey, 0, arrival->survey.item_count, wrong);
	log_line("resume: filled in %.1f ms, verified in %.1f ms", (double)(filled - begin) / 1e6,
		 (double)(clock_ns() - filled) / 1e6);
	return result;
}

static void all_is_there(struct moved *moved, const struct survey *survey)
{
	moved->bytes = 0;
	for (size_t i = 0; i < survey->block_count; i++) {
		block_set_hollow(survey->blocks[i], false);
		block_set_parts_left(survey->blocks[i], 0);
		moved->bytes += survey->blocks[i]->size;
	}
	outcome_is(moved, AFFINODE_OK, "");
}

static void resume_blocks(struct moved *moved, struct arrival *arrival)
{
	bool streams = moved->move.streams;
	struct wrong wrong = {0};
	size_t arrived = 0;
	CUresult result;

	moved->copied = bytes_on_disk(&arrival->survey);
	result = streams ? stream_in(moved, &arrival->survey, &wrong, &arrived) : bring_back(moved, arrival, &wrong);
	if (result == CUDA_SUCCESS && wrong.chunks == 0)
		return all_is_there(moved, &arrival->survey);
	log_line("resume: CUDA error %d with %zu of %zu blocks created, %zu mapped, %zu filled for good", result, arrival->created,
		 arrival->survey.block_count, arrival->mapped, arrived);
	give_back(arrival, streams, arrived);
	if (streams && mover_is_aborted())
		outcome_is(moved, AFFINODE_REVOKED, "the room that it was to have does not come");
	else if (result == CUDA_ERROR_OUT_OF_MEMORY)
		outcome_is(moved, AFFINODE_NO_GPU_ROOM, "the GPU is full");
	else if (result == CUDA_SUCCESS && wrong.on_disk) {
		/* Not what was written there: no try will bring it back, and calls are told so instead of waiting.  */
		outcome_is(moved, AFFINODE_FAILED, "memory that was on disk came back wrong: it is lost");
		gate_set_broken(CUDA_ERROR_ECC_UNCORRECTABLE);
	} else if (result == CUDA_ERROR_OPERATING_SYSTEM && moved->copied)
		outcome_is(moved, AFFINODE_FAILED, "the disk that the memory is on could not be read; it is tried again");
	else if (result == CUDA_SUCCESS)
		outcome_is(moved, AFFINODE_FAILED, "memory came back wrong again and again; it is kept in host memory");
	else if (moved->status == AFFINODE_OK) /* else it was taken back, and says so; a driver may say NOT_READY, too */
		outcome_is(moved, AFFINODE_FAILED, "the driver could not bring the memory back; it is kept");
}

void resume(struct moved *moved)
{
	struct arrival arrival = {0};
	enum affinode_status back;

	if (!shim_move_state(AFFINODE_STATE_PARKED, AFFINODE_STATE_RESUMING) &&
	    !shim_move_state(AFFINODE_STATE_QUEUED, AFFINODE_STATE_RESUMING))
		return outcome_is(moved, AFFINODE_NOTHING, "the GPU is not freed");
	back = depth_moves->in(moved->move.migrates ? moved->move.to_gpu : NULL, moved->text, sizeof(moved->text));
	if (back != AFFINODE_OK) {
		moved->status = back;
		shim_move_state(AFFINODE_STATE_RESUMING, AFFINODE_STATE_PARKED);
		return;
	}
	blocks_reap(false); /* what was freed while the mover had something else to do */
	if (!survey_begin(&arrival.survey, false))
		outcome_is(moved, AFFINODE_FAILED, "host memory is short");
	else if (moved->move.alone && !gpu_lock_all())
		outcome_is(moved, AFFINODE_NO_GPU_ROOM, "another kernel is getting its GPU memory back");
	else
		resume_blocks(moved, &arrival);
	gpu_unlock_all(); /* that of depth_moves->in, too */
	survey_end(&arrival.survey);
	blocks_reap(false);
	if (moved->move.hands_over)
		slabs_hand_over(); /* with what was freed meanwhile */
	driver.cuCtxSetCurrent(NULL);
	blocks_changed();
	if (moved->status != AFFINODE_OK) {
		shim_move_state(AFFINODE_STATE_RESUMING, AFFINODE_STATE_PARKED);
		return;
	}
	page_set_depth(AFFINODE_DEPTH_NONE);
	shim_move_state(AFFINODE_STATE_RESUMING, AFFINODE_STATE_RESIDENT);
	gate_open();
}
