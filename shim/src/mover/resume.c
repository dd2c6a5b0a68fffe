/* Resuming, at the closed gate. All or nothing: physical memory is created, mapped, filled and verified against the digests
 * taken at park, and the gate opens when all of that is done for everything. Until then the host copy is the truth, and
 * whatever fails gives all the memory back.  */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/monotonic_futex.h"
#include "driver/real_driver.h"
#include "gate/gate.h"
#include "gpu/gpu_lock.h"
#include "mover/copies.h"
#include "mover/internal.h"
#include "mover/move_plan.h"
#include "state/depth.h"
#include "state/shim_state.h"
#include "state/status_page.h"

/* How often a chunk that came back wrong is copied again before the resume is given up.  */
#define MENDINGS 3

/* How far it has come; blocks in the survey's order.  */
struct arrival {
	struct survey survey;
	size_t created, mapped;
	bool streams;         /* blocks grow part by part, as room comes */
	uint64_t got_room_ns; /* when the last part came */
};

static CUresult use_context_of(const struct block *block)
{
	return block->context->handle ? driver.cuCtxSetCurrent(block->context->handle) : CUDA_ERROR_INVALID_VALUE;
}

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

static bool may_wait_for_room(const struct arrival *arrival)
{
	return !mover_is_aborted() && !atomic_load(&gate.dying) &&
	       clock_ns() - arrival->got_room_ns < AFFINODE_STREAM_MS * MS_NS;
}

/* A look first: an attempt on a full GPU costs more. What the driver does not say is tried.  */
static bool is_room_for_part(const struct block *block)
{
	size_t free_bytes, total, part = block_part_begins(block, block->parts_created);

	part = block_part_begins(block, block->parts_created + 1) - part;
	return driver.cuMemGetInfo(&free_bytes, &total) != CUDA_SUCCESS || free_bytes >= part;
}

/* Grow the item's block until it can be filled there.  */
static CUresult grow_up_to(struct arrival *arrival, const struct item *item)
{
	struct block *block = item->block;
	CUresult result = use_context_of(block);

	if (result == CUDA_SUCCESS && block->hollow)
		result = block_map(block); /* some addresses may have lost it */
	while (result == CUDA_SUCCESS && block_usable_bytes(block) <= item->index * CHUNK_BYTES) {
		result = is_room_for_part(block) ? block_grow(block) : CUDA_ERROR_OUT_OF_MEMORY;
		if (result == CUDA_SUCCESS) {
			arrival->got_room_ns = clock_ns();
			block_set_resident(block, block->parts_created == block_parts(block));
		} else if (result == CUDA_ERROR_OUT_OF_MEMORY && may_wait_for_room(arrival)) {
			clock_sleep_ns(MS_NS);
			result = CUDA_SUCCESS;
		}
	}
	return result;
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

/* Undo what was done: the host copies are untouched.  */
static void give_back(struct arrival *arrival)
{
	survey_finish_transfers(&arrival->survey);
	for (size_t i = 0; i < (arrival->streams ? arrival->survey.block_count : arrival->created); i++) {
		struct block *block = arrival->survey.blocks[i];
		bool is_gone;

		use_context_of(block);
		is_gone = block_keep(block, block->parts_left) == CUDA_SUCCESS;
		/* One that has not grown to its end goes on from there the next time.  */
		block_set_hollow(block, !is_gone && (block->resident || !arrival->streams));
		if (block->hollow)
			block_set_resident(block, true);
	}
}

/* Where the item's contents are; `bytes` are to be filled in.  */
static struct stretch stretch_at(const struct item *item)
{
	const struct chunk *chunk = item_chunk(item);
	struct stretch stretch = {.context = item->block->context, .device = item->now.address};

	if (chunk->kind == CHUNK_SPILLED)
		stretch.place = chunk->place;
	else
		stretch.host = chunk->slot;
	return stretch;
}

static bool continues(const struct stretch *stretch, const struct item *item)
{
	const struct host_slot *slot = &item_chunk(item)->slot;

	if (stretch->place)
		return item_chunk(item)->place == stretch->place + stretch->bytes / CHUNK_BYTES;
	return item->now.address == stretch->device + stretch->bytes && slot->slab == stretch->host.slab &&
	       slot->index * CHUNK_BYTES == stretch->host.index * CHUNK_BYTES + stretch->bytes;
}

/* Begin to fill the chunks from the lane's place on: one stretch of one kind in one block.  */
static CUresult fill_next(struct arrival *arrival, struct lane *lane)
{
	struct item *item = &arrival->survey.items[lane->at], *end = &arrival->survey.items[lane->end];
	const struct item *first = item;
	struct stretch stretch = stretch_at(item);
	uint8_t kind = item_chunk(item)->kind;
	bool zeros = kind == CHUNK_ZERO;
	CUresult result = arrival->streams ? grow_up_to(arrival, item) : map_up_to(arrival, item->block_number);
	size_t usable = block_usable_bytes(item->block);

	if (result != CUDA_SUCCESS)
		return result;
	while (item < end && item->block == first->block && item->index * CHUNK_BYTES < usable && item_chunk(item)->kind == kind &&
	       (zeros || item == first || continues(&stretch, item))) {
		stretch.bytes += item_bytes(item);
		item++;
	}
	lane->at = (size_t)(item - arrival->survey.items);
	return zeros ? transfer_zeros(lane->context, stretch.device, stretch.bytes) : transfer_begin(&stretch, false);
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

static bool is_right(const struct item *item)
{
	const struct chunk *chunk = item_chunk(item);

	if (!chunk->digested || !item->digestible)
		return true;
	if (chunk->kind == CHUNK_ZERO)
		return item->now.zero;
	return memcmp(&item->now.digest, &chunk->digest, sizeof(chunk->digest)) == 0;
}

static CUresult fill_again(const struct item *item)
{
	struct stretch stretch = stretch_at(item);

	stretch.bytes = item_bytes(item);
	if (item_chunk(item)->kind == CHUNK_ZERO)
		return transfer_zeros(stretch.context, stretch.device, stretch.bytes);
	return transfer_begin(&stretch, false);
}

/* Look at every byte; what is wrong is copied again. *wrong: chunks that stay wrong; *lost: of these, from disk.  */
static CUresult verify(struct survey *survey, size_t *wrong, size_t *lost)
{
	CUresult result = survey_digest(survey);

	for (int attempt = 0; result == CUDA_SUCCESS; attempt++) {
		*wrong = *lost = 0;
		for (size_t i = 0; i < survey->item_count && result == CUDA_SUCCESS; i++) {
			if (is_right(&survey->items[i]))
				continue;
			++*wrong;
			*lost += item_chunk(&survey->items[i])->kind == CHUNK_SPILLED;
			if (attempt < MENDINGS)
				result = fill_again(&survey->items[i]);
		}
		if (result != CUDA_SUCCESS || *wrong == 0 || attempt == MENDINGS)
			break;
		log_line("%zu chunks came back wrong: copied again", *wrong);
		page_count_mended(*wrong);
		result = survey_finish_transfers(survey);
		if (result == CUDA_SUCCESS)
			result = survey_digest(survey);
	}
	return result;
}

static uint64_t bytes_on_disk(const struct survey *survey)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < survey->item_count; i++)
		bytes += item_chunk(&survey->items[i])->kind == CHUNK_SPILLED ? CHUNK_BYTES : 0;
	return bytes;
}

static CUresult bring_back(struct moved *moved, struct arrival *arrival, size_t *wrong, size_t *lost)
{
	uint64_t begin = clock_ns(), filled;
	CUresult result = arrival->streams ? CUDA_SUCCESS : look_for_room(&arrival->survey);

	moved->copied = bytes_on_disk(&arrival->survey);
	/* A disk is slow: the room that was reserved is seen to be taken at once.  */
	if (result == CUDA_SUCCESS && !arrival->streams && (moved->move.prepare || moved->copied))
		result = create_and_map_all(arrival);
	if (result == CUDA_SUCCESS && moved->move.prepare && !mover_wait_for_commit(moved))
		return CUDA_ERROR_NOT_READY;
	if (result == CUDA_SUCCESS)
		result = fill_all(arrival);
	filled = clock_ns();
	if (result == CUDA_SUCCESS)
		result = verify(&arrival->survey, wrong, lost);
	log_line("resume: filled in %.1f ms, verified in %.1f ms", (double)(filled - begin) / 1e6,
		 (double)(clock_ns() - filled) / 1e6);
	return result;
}

static void resume_blocks(struct moved *moved, struct arrival *arrival)
{
	size_t wrong = 0, lost = 0;
	CUresult result = bring_back(moved, arrival, &wrong, &lost);

	if (result == CUDA_SUCCESS && wrong == 0) {
		for (size_t i = 0; i < arrival->survey.block_count; i++) {
			block_set_hollow(arrival->survey.blocks[i], false);
			block_set_parts_left(arrival->survey.blocks[i], 0);
			moved->bytes += arrival->survey.blocks[i]->size;
		}
		return outcome_is(moved, AFFINODE_OK, "");
	}
	log_line("resume: CUDA error %d with %zu of %zu blocks created, %zu mapped", result, arrival->created,
		 arrival->survey.block_count, arrival->mapped);
	give_back(arrival);
	if (arrival->streams && mover_is_aborted())
		outcome_is(moved, AFFINODE_REVOKED, "the room that it was to have does not come");
	else if (result == CUDA_ERROR_OUT_OF_MEMORY)
		outcome_is(moved, AFFINODE_NO_GPU_ROOM, "the GPU is full");
	else if (result == CUDA_SUCCESS && lost) {
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
	struct arrival arrival = {.streams = moved->move.streams, .got_room_ns = clock_ns()};
	enum affinode_status back;

	if (!shim_move_state(AFFINODE_STATE_PARKED, AFFINODE_STATE_RESUMING) &&
	    !shim_move_state(AFFINODE_STATE_QUEUED, AFFINODE_STATE_RESUMING))
		return outcome_is(moved, AFFINODE_NOTHING, "not parked");
	back = depth_moves->in(moved->move.elsewhere ? moved->move.to_gpu : NULL, moved->text, sizeof(moved->text));
	if (back != AFFINODE_OK) {
		moved->status = back;
		shim_move_state(AFFINODE_STATE_RESUMING, AFFINODE_STATE_PARKED);
		return;
	}
	if (!survey_begin(&arrival.survey, false))
		outcome_is(moved, AFFINODE_FAILED, "host memory is short");
	else if (moved->move.alone && !gpu_lock_all())
		outcome_is(moved, AFFINODE_NO_GPU_ROOM, "another kernel is resuming");
	else
		resume_blocks(moved, &arrival);
	gpu_unlock_all(); /* that of depth_moves->in, too */
	survey_end(&arrival.survey);
	blocks_reap(false);
	driver.cuCtxSetCurrent(NULL);
	if (moved->status != AFFINODE_OK) {
		shim_move_state(AFFINODE_STATE_RESUMING, AFFINODE_STATE_PARKED);
		return;
	}
	blocks_changed();
	page_set_depth(AFFINODE_DEPTH_NONE);
	shim_move_state(AFFINODE_STATE_RESUMING, AFFINODE_STATE_RESIDENT);
	gate_open();
}
