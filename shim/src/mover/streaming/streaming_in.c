#include "mover/streaming/streaming_in.h"

#include "base/log.h"
#include "base/monotonic_futex.h"
#include "driver/real_driver.h"
#include "gate/gate.h"
#include "mover/copying/copies.h"
#include "mover/streaming/windows.h"
#include "state/controller.h"

struct arrival {
	struct moved *moved;
	struct survey *survey;
	struct walk walk;
	uint64_t got_room_ns; /* when the last part came */
	size_t arrived;
	struct {
		uint64_t room, copies, creates, verifies, gives_back;
	} spent_ns; /* waiting for them, and with them */
};

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

/* Grow the part's block until it is there. CUDA_ERROR_OUT_OF_MEMORY: there is no room; it was waited for, if that is wished for.  */
static CUresult grow_up_to(struct arrival *arrival, const struct part *part, bool waits)
{
	struct block *block = part->block;
	CUresult result = use_context_of(block);

	if (result == CUDA_SUCCESS && block->hollow)
		result = block_map(block); /* some addresses may have lost it */
	while (result == CUDA_SUCCESS && block_usable_bytes(block) < block_part_begins(block, part->number + 1)) {
		uint64_t begin = clock_ns();

		result = is_room_for_part(block) ? block_grow(block) : CUDA_ERROR_OUT_OF_MEMORY;
		if (result == CUDA_SUCCESS) {
			arrival->got_room_ns = add_since(&arrival->spent_ns.creates, begin);
			block_set_resident(block, block->parts_created == block_parts(block));
		} else if (result == CUDA_ERROR_OUT_OF_MEMORY && waits && may_wait_for_room(arrival)) {
			clock_sleep_ns(MS_NS);
			add_since(&arrival->spent_ns.room, begin);
			result = CUDA_SUCCESS;
		}
	}
	return result;
}

static CUresult begin_to_fill(struct survey *survey, const struct part *part)
{
	CUresult result = CUDA_SUCCESS;

	for (size_t at = part->begin; at < part->end && result == CUDA_SUCCESS;)
		result = copy_in_next(survey, &at, part->end);
	return result;
}

/* What there is room for. It waits for some where nothing else is to be done.  */
static CUresult fill_window(struct arrival *arrival, struct window *window, bool waits)
{
	CUresult result = CUDA_SUCCESS;
	struct part part;

	window_empty(&arrival->walk, window);
	while (walk_next(&arrival->walk, &part) && window_takes(&arrival->walk, window, &part)) {
		result = grow_up_to(arrival, &part, waits && window_is_empty(window));
		if (result == CUDA_ERROR_OUT_OF_MEMORY && (!window_is_empty(window) || !waits))
			break;
		if (result == CUDA_SUCCESS)
			result = begin_to_fill(arrival->survey, &part);
		if (result != CUDA_SUCCESS)
			return result;
		window_add(&arrival->walk, window, &part);
	}
	return window_is_empty(window) ? CUDA_SUCCESS : transfers_mark(window->context, window->mark);
}

/* From now on it is on the GPU, and the host has no copy of it but what is on disk.  */
static void give_up_copies(struct arrival *arrival, const struct part *part)
{
	struct block *block = part->block;
	bool is_last = part->number + 1 == block_parts(block);

	block_set_parts_left(block, is_last ? 0 : part->number + 1);
	if (is_last) {
		block_set_hollow(block, false);
		arrival->arrived = arrival->survey->items[part->begin].block_number + 1;
	}
	for (size_t at = part->begin; at < part->end; at++)
		if (chunk_has_slot(item_chunk(&arrival->survey->items[at])))
			chunk_drop(item_chunk(&arrival->survey->items[at]));
	arrival->moved->bytes += block_part_begins(block, part->number + 1) - block_part_begins(block, part->number);
}

static void hand_over(struct arrival *arrival, const struct window *window)
{
	struct part part;

	for (size_t at = window->begin; at < window->end; at = part.end) {
		part = part_of(arrival->survey, at);
		give_up_copies(arrival, &part);
	}
	slabs_hand_over();
	blocks_changed();
	link_wake(); /* lots that have ended */
}

/* The next window is being filled meanwhile.  */
static CUresult finish(struct arrival *arrival, const struct window *window, struct wrong *wrong)
{
	uint64_t begin = clock_ns();
	CUresult result = transfers_wait_for(window->context, window->mark);

	begin = add_since(&arrival->spent_ns.copies, begin);
	if (result == CUDA_SUCCESS)
		result = put_right(arrival->survey, window->begin, window->end, wrong);
	begin = add_since(&arrival->spent_ns.verifies, begin);
	if (result == CUDA_SUCCESS && wrong->chunks == 0 && arrival->moved->move.hands_over) {
		hand_over(arrival, window);
		add_since(&arrival->spent_ns.gives_back, begin);
	}
	return result;
}

CUresult stream_in(struct moved *moved, struct survey *survey, struct wrong *wrong, size_t *arrived)
{
	uint64_t begin = clock_ns();
	struct arrival arrival = {.moved = moved, .survey = survey, .got_room_ns = begin};
	struct window windows[2] = {{.mark = 0}, {.mark = 1}}, *next = &windows[0], *under_way = &windows[1], *done;
	CUresult result = CUDA_SUCCESS, finished;
	struct part part;

	arrival.walk = (struct walk){.survey = survey, .most = moved->move.hands_over ? HANDED_WINDOW_ITEMS : WINDOW_ITEMS};
	while (result == CUDA_SUCCESS && wrong->chunks == 0 && (!window_is_empty(under_way) || walk_next(&arrival.walk, &part))) {
		result = fill_window(&arrival, next, window_is_empty(under_way));
		if (result == CUDA_SUCCESS && !window_is_empty(under_way))
			result = finish(&arrival, under_way, wrong);
		done = under_way;
		under_way = next;
		next = done;
	}
	finished = survey_finish_transfers(survey);
	log_line("resume: came part by part in %.1f ms: waited %.1f for room and %.1f for copies, created in %.1f, verified in %.1f, "
		 "gave host memory back in %.1f", (double)(clock_ns() - begin) / 1e6, (double)arrival.spent_ns.room / 1e6,
		 (double)arrival.spent_ns.copies / 1e6, (double)arrival.spent_ns.creates / 1e6,
		 (double)arrival.spent_ns.verifies / 1e6, (double)arrival.spent_ns.gives_back / 1e6);
	*arrived = arrival.arrived;
	return result == CUDA_SUCCESS ? finished : result;
}
