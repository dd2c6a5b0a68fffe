/* Resuming, at the closed gate. Physical memory is created, mapped, filled and verified against the digests taken at park, and the gate
 * opens when all of that is done for everything. Until then the host copy is the truth, and whatever fails gives all the memory
 * back: all or nothing.
 *
 * It goes window by window: one is looked at while the next one is on its way. A move that streams (AFFINODE_MOVE_STREAM) waits for
 * room where there is none. One that hands over (AFFINODE_MOVE_HAND_OVER) gives the host memory of each window back as soon as that
 * is right, so that the process that leaves can have it: what it has brought by then is on the GPU for good.  */
#include "base/log.h"
#include "base/monotonic_futex.h"
#include "driver/real_driver.h"
#include "gate/gate.h"
#include "gpu/gpu_lock.h"
#include "host/slabs.h"
#include "mover/copying/copies.h"
#include "mover/copying/copying_in.h"
#include "mover/internal.h"
#include "state/controller.h"
#include "state/depth.h"
#include "state/shim_state.h"
#include "state/status_page.h"

struct arrival {
	struct moved *moved;
	struct survey survey;
	struct wrong wrong;
	uint64_t got_room_ns; /* when the last part came */
	struct {
		uint64_t room, copies, creates, verifies, gives_back;
	} spent_ns; /* waiting for them, and with them */
};

/* A look before anything is created, so that a resume that cannot succeed takes nothing from others, not for a moment.  */
static CUresult check_room(const struct survey *survey)
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

/* An attempt on a full GPU costs more than to ask. What the driver does not say is tried.  */
static bool is_room_for_part(const struct block *block)
{
	size_t free_bytes, total, part = block_part_begins(block, block->parts_created);

	part = block_part_begins(block, block->parts_created + 1) - part;
	return driver.cuMemGetInfo(&free_bytes, &total) != CUDA_SUCCESS || free_bytes >= part;
}

/* Create and map the part's block up to its end, as far as that is not done yet.  */
static CUresult grow_up_to(struct arrival *arrival, const struct part *part)
{
	struct block *block = part->block;
	bool asks = move_streams(&arrival->moved->move);
	CUresult result = use_context_of(block);
	uint64_t begin = clock_ns();

	if (result == CUDA_SUCCESS && block->hollow)
		result = block_map(block); /* some addresses may have lost it */
	while (result == CUDA_SUCCESS && block_usable_bytes(block) < block_part_begins(block, part->number + 1)) {
		result = asks && !is_room_for_part(block) ? CUDA_ERROR_OUT_OF_MEMORY : block_grow(block);
		if (result == CUDA_SUCCESS) {
			arrival->got_room_ns = clock_ns();
			block_set_resident(block, block->parts_created == block_parts(block));
		}
	}
	add_since(&arrival->spent_ns.creates, begin);
	return result;
}

static CUresult take_all_room(struct arrival *arrival)
{
	CUresult result = CUDA_SUCCESS;
	struct part part;

	for (size_t at = 0; at < arrival->survey.item_count && result == CUDA_SUCCESS; at = part.end) {
		part = part_of(&arrival->survey, at);
		result = grow_up_to(arrival, &part);
	}
	return result;
}

/* Begin to fill the lane's next window, or what there is room for of it.  */
static CUresult begin_window(struct arrival *arrival, struct lane *lane)
{
	size_t begin = lane->at, most = items_in_window(&arrival->moved->move);
	CUresult result;

	while (lane->at < lane->end) {
		struct part part = part_of(&arrival->survey, lane->at);

		if (lane->at > begin && part.end - begin > most)
			break;
		result = grow_up_to(arrival, &part);
		if (result == CUDA_ERROR_OUT_OF_MEMORY && move_streams(&arrival->moved->move))
			break;
		while (result == CUDA_SUCCESS && lane->at < part.end)
			result = copy_in_next(&arrival->survey, &lane->at, part.end);
		if (result != CUDA_SUCCESS)
			return result;
	}
	return lane->at > begin ? transfers_mark(lane->context, !lane->mark) : CUDA_SUCCESS;
}

/* From now on it is on the GPU, and the host has no copy of it but what is on disk.  */
static void give_up_copies(struct arrival *arrival, const struct part *part)
{
	struct block *block = part->block;
	bool is_last = part->number + 1 == block_parts(block);

	block_set_parts_left(block, is_last ? 0 : part->number + 1);
	if (is_last)
		block_set_hollow(block, false);
	for (size_t at = part->begin; at < part->end; at++)
		if (chunk_takes_memory(item_chunk(&arrival->survey.items[at])))
			chunk_drop(item_chunk(&arrival->survey.items[at]));
	arrival->moved->bytes += block_part_begins(block, part->number + 1) - block_part_begins(block, part->number);
}

static void hand_over(struct arrival *arrival, size_t begin, size_t end)
{
	struct part part;

	for (size_t at = begin; at < end; at = part.end) {
		part = part_of(&arrival->survey, at);
		give_up_copies(arrival, &part);
	}
	slabs_hand_over();
	blocks_changed();
	link_wake(); /* lots that have ended */
}

/* Look at the window that ends there, while the one after it is being filled.  */
static CUresult finish_window(struct arrival *arrival, struct lane *lane, size_t end)
{
	uint64_t begin = clock_ns();
	CUresult result = transfers_wait_for(lane->context, lane->mark);

	begin = add_since(&arrival->spent_ns.copies, begin);
	if (result == CUDA_SUCCESS)
		result = put_right(&arrival->survey, lane->arrived, end, &arrival->wrong);
	begin = add_since(&arrival->spent_ns.verifies, begin);
	if (result != CUDA_SUCCESS || arrival->wrong.chunks)
		return result;
	if (move_hands_over(&arrival->moved->move))
		hand_over(arrival, lane->arrived, end);
	add_since(&arrival->spent_ns.gives_back, begin);
	lane->arrived = end;
	return CUDA_SUCCESS;
}

/* *any: something was begun, or finished.  */
static CUresult advance(struct arrival *arrival, struct lane *lane, bool *any)
{
	size_t begun = lane->at;
	CUresult result = begin_window(arrival, lane);

	*any = *any || lane->at > lane->arrived;
	if (result == CUDA_SUCCESS && begun > lane->arrived)
		result = finish_window(arrival, lane, begun);
	if (lane->at > begun)
		lane->mark = !lane->mark;
	return result;
}

static bool wait_for_room(struct arrival *arrival)
{
	uint64_t begin = clock_ns();

	if (!move_streams(&arrival->moved->move) || mover_is_aborted() || atomic_load(&gate.dying) ||
	    begin - arrival->got_room_ns >= AFFINODE_STREAM_MS * MS_NS)
		return false;
	clock_sleep_ns(MS_NS);
	add_since(&arrival->spent_ns.room, begin);
	return true;
}

/* Lanes in turn, so that every GPU's link is at work.  */
static CUresult fill_all(struct arrival *arrival)
{
	struct survey *survey = &arrival->survey;
	CUresult result = CUDA_SUCCESS;
	size_t open = survey->lane_count;

	while (open && result == CUDA_SUCCESS && !arrival->wrong.chunks) {
		bool any = false;

		open = 0;
		for (size_t i = 0; i < survey->lane_count && result == CUDA_SUCCESS && !arrival->wrong.chunks; i++) {
			result = advance(arrival, &survey->lanes[i], &any);
			open += survey->lanes[i].arrived < survey->lanes[i].end;
		}
		if (open && !any && !wait_for_room(arrival))
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return result;
}

static CUresult bring_back(struct arrival *arrival)
{
	struct moved *moved = arrival->moved;
	bool streams = move_streams(&moved->move);
	CUresult result = streams ? CUDA_SUCCESS : check_room(&arrival->survey), finished;
	uint64_t begin = clock_ns();

	/* Peers wait for it, or a disk, which is slow: the room that was reserved is seen to be taken at once.  */
	if (result == CUDA_SUCCESS && !streams && (moved->move.in_two_steps || moved->copied))
		result = take_all_room(arrival);
	if (result == CUDA_SUCCESS && moved->move.in_two_steps && !mover_wait_for_commit(moved))
		result = CUDA_ERROR_NOT_READY;
	arrival->got_room_ns = clock_ns();
	if (result == CUDA_SUCCESS)
		result = fill_all(arrival);
	finished = survey_finish_transfers(&arrival->survey);
	log_line("resume: came %s in %.1f ms: waited %.1f for room and %.1f for copies, created in %.1f, verified in %.1f, gave host memory "
		 "back in %.1f", streams ? "part by part" : "back", (double)(clock_ns() - begin) / 1e6,
		 (double)arrival->spent_ns.room / 1e6, (double)arrival->spent_ns.copies / 1e6,
		 (double)arrival->spent_ns.creates / 1e6, (double)arrival->spent_ns.verifies / 1e6,
		 (double)arrival->spent_ns.gives_back / 1e6);
	return result == CUDA_SUCCESS ? finished : result;
}

/* Undo what was done: the host copies are untouched. Where host memory was handed over, what has arrived stays.  */
static void give_back(struct arrival *arrival)
{
	const struct survey *survey = &arrival->survey;
	bool hands_over = move_hands_over(&arrival->moved->move);

	for (const struct lane *lane = survey->lanes; lane < survey->lanes + survey->lane_count; lane++)
		for (size_t at = hands_over ? lane->arrived : lane->begin; at < lane->end;
		     at = survey->begins[survey->items[at].block_number + 1]) {
			struct block *block = survey->items[at].block;
			bool is_gone;

			use_context_of(block);
			is_gone = block_keep(block, block->parts_left) == CUDA_SUCCESS;
			/* One that has not grown to its end goes on from there the next time.  */
			block_set_hollow(block, !is_gone && block->resident);
		}
}

static uint64_t bytes_on_disk(const struct survey *survey)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < survey->item_count; i++)
		bytes += chunk_is_on_disk(item_chunk(&survey->items[i])) ? CHUNK_BYTES : 0;
	return bytes;
}

static void all_is_there(struct moved *moved, const struct survey *survey)
{
	moved->bytes = 0;
	for (size_t i = 0; i < survey->block_count; i++) {
		block_set_hollow(survey->blocks[i], false);
		block_set_parts_left(survey->blocks[i], 0);
		moved->bytes += survey->blocks[i]->size;
	}
	outcome_is(moved, AFFINODE_OK, NO_REASON);
}

static void resume_blocks(struct arrival *arrival)
{
	struct moved *moved = arrival->moved;
	CUresult result;

	moved->copied = bytes_on_disk(&arrival->survey);
	result = bring_back(arrival);
	if (result == CUDA_SUCCESS && arrival->wrong.chunks == 0)
		return all_is_there(moved, &arrival->survey);
	log_line("resume: CUDA error %d", result);
	give_back(arrival);
	if (move_streams(&moved->move) && mover_is_aborted())
		outcome_is(moved, AFFINODE_REVOKED, REASON_NO_ROOM_COMES);
	else if (result == CUDA_ERROR_OUT_OF_MEMORY)
		outcome_is(moved, AFFINODE_NO_GPU_ROOM, REASON_GPU_FULL);
	else if (result == CUDA_SUCCESS && arrival->wrong.on_disk) {
		/* Not what was written there: no try will bring it back, and calls are told so instead of waiting.  */
		outcome_is(moved, AFFINODE_FAILED, REASON_LOST_ON_DISK);
		gate_set_broken(CUDA_ERROR_ECC_UNCORRECTABLE);
	} else if (result == CUDA_ERROR_OPERATING_SYSTEM && moved->copied)
		outcome_is(moved, AFFINODE_FAILED, REASON_DISK_NOT_READ);
	else if (result == CUDA_SUCCESS)
		outcome_is(moved, AFFINODE_FAILED, REASON_CAME_BACK_WRONG);
	else if (moved->status == AFFINODE_OK) /* else it was taken back, and says so; a driver may say NOT_READY, too */
		outcome_is(moved, AFFINODE_FAILED, REASON_NOT_BROUGHT_BACK);
}

void resume(struct moved *moved)
{
	struct arrival arrival = {.moved = moved};
	enum affinode_status back;

	if (!shim_move_state(AFFINODE_STATE_PARKED, AFFINODE_STATE_RESUMING) &&
	    !shim_move_state(AFFINODE_STATE_QUEUED, AFFINODE_STATE_RESUMING))
		return outcome_is(moved, AFFINODE_NOTHING, REASON_NOT_FREED);
	back = depth_moves->in(moved->move.kind == MOVE_MIGRATE ? moved->move.to_gpu : NULL, moved->text, sizeof(moved->text));
	if (back != AFFINODE_OK) {
		moved->status = back;
		shim_move_state(AFFINODE_STATE_RESUMING, AFFINODE_STATE_PARKED);
		return;
	}
	blocks_reap(false); /* what was freed while the mover had something else to do */
	if (survey_begin(&arrival.survey, false) != 0)
		outcome_is(moved, AFFINODE_FAILED, REASON_HOST_MEMORY_SHORT);
	else if (moved->move.kind == MOVE_RESUME_ALONE && gpu_lock_all() != 0)
		outcome_is(moved, AFFINODE_NO_GPU_ROOM, REASON_ANOTHER_RESUMES);
	else
		resume_blocks(&arrival);
	gpu_unlock_all(); /* that of depth_moves->in, too */
	survey_end(&arrival.survey);
	blocks_reap(false);
	if (move_hands_over(&moved->move))
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
