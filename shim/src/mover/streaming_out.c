#include "mover/streaming_out.h"

#include "base/log.h"
#include "base/monotonic_futex.h"
#include "driver/real_driver.h"
#include "gate/gate.h"
#include "mover/copies.h"
#include "mover/copying_out.h"
#include "mover/queue.h"
#include "mover/windows.h"

/* How often a window that was written to past the gate is copied again.  */
#define COPIED_AGAIN 3

struct departure {
	struct moved *moved;
	struct survey *survey;
	struct walk walk;
	uint64_t got_host_ns; /* when it last had host memory to go on with */
};

static bool has_slots(size_t slots)
{
	if (slots == 0 || slots_free() >= slots)
		return true;
	return slabs_take_lots() > 0 && slots_free() >= slots;
}

/* What there is host memory for: where it is handed over there may be none for the next part, nor a window.  */
static void next_window(struct departure *departure, struct window *window)
{
	struct piece part;
	size_t slots = 0;

	window_empty(window);
	while (walk_next(&departure->walk, &part) && window_takes(&departure->walk, window, &part)) {
		if (departure->moved->move.hands_over) {
			slots += slots_needed(departure->survey, part.begin, part.end);
			if (!has_slots(slots))
				return;
		}
		window_add(&departure->walk, window, &part);
		departure->got_host_ns = clock_ns();
	}
}

static CUresult begin_copies(struct survey *survey, struct window *window, uint64_t *copied)
{
	for (size_t i = 0; i < window->count; i++) {
		struct lane lane = {window->context, window->pieces[i].begin, window->pieces[i].end, window->pieces[i].begin};
		CUresult result = copy_lane_out(survey, &lane, copied);

		if (result != CUDA_SUCCESS)
			return result;
	}
	return transfers_mark(window->context, window->mark);
}

static bool host_has_window(const struct survey *survey, const struct window *window)
{
	for (size_t i = 0; i < window->count; i++)
		if (!host_has(survey, window->pieces[i].begin, window->pieces[i].end))
			return false;
	return true;
}

/* Until the host has what is in it now, by a digest that was taken after the copy. *is_known: it has.  */
static CUresult complete(struct survey *survey, struct window *window, uint64_t *copied, bool *is_known)
{
	CUresult result = transfers_wait_for(window->context, window->mark);

	*is_known = false;
	for (int again = 0; result == CUDA_SUCCESS; again++) {
		result = window_digest(survey, window);
		*is_known = result == CUDA_SUCCESS && host_has_window(survey, window);
		if (*is_known || result != CUDA_SUCCESS || again == COPIED_AGAIN)
			break;
		result = begin_copies(survey, window, copied);
		if (result == CUDA_SUCCESS)
			result = transfers_wait_for(window->context, window->mark);
	}
	return result;
}

/* Where the driver would not, the memory stays, and what is in the copy is filled in again at the resume: the program may see only
 * some of it.  */
static void release(struct moved *moved, const struct piece *piece)
{
	struct block *block = piece->block;
	size_t before = block_usable_bytes(block);
	bool is_gone;

	block_set_parts_left(block, piece->from);
	is_gone = block_keep(block, piece->from) == CUDA_SUCCESS;
	block_set_hollow(block, !is_gone && block->resident);
	if (is_gone)
		moved->bytes += before - block_part_begins(block, piece->from);
}

static bool release_window(struct moved *moved, struct survey *survey, const struct window *window)
{
	if (driver.cuCtxSetCurrent(window->context->handle) != CUDA_SUCCESS)
		return false;
	for (size_t i = 0; i < window->count; i++) {
		moved->zeros += settle_items(survey, window->pieces[i].begin, window->pieces[i].end);
		release(moved, &window->pieces[i]);
	}
	blocks_changed();
	return true;
}

/* NULL, or what was in the way.  */
static const char *finish(struct moved *moved, struct survey *survey, struct window *window)
{
	bool is_known;
	CUresult result = complete(survey, window, &moved->copied, &is_known);

	if (result != CUDA_SUCCESS)
		return "the driver could not copy all of the GPU's memory out";
	if (!is_known)
		return "GPU memory was written to without a CUDA call";
	return release_window(moved, survey, window) ? NULL : "the driver could not release the GPU's memory";
}

/* Nothing is under way, and there is no host memory for the next part. False: none comes.  */
static bool wait_for_host_memory(struct departure *departure)
{
	if (mover_is_aborted() || clock_ns() - departure->got_host_ns >= AFFINODE_STREAM_MS * MS_NS) {
		outcome_is(departure->moved, AFFINODE_NO_HOST_ROOM, "the host memory that it was to have does not come");
		return false;
	}
	pthread_mutex_lock(&mover_queue.lock);
	mover_wait_for_change(MS_NS);
	pthread_mutex_unlock(&mover_queue.lock);
	return true;
}

/* What is on the GPU still needs no slots, and others need them.  */
static void give_up_copies(struct survey *survey)
{
	for (size_t i = 0; i < survey->item_count; i++) {
		const struct block *block = survey->items[i].block;

		if (chunk_has_slot(item_chunk(&survey->items[i])) &&
		    ((block->resident && !block->hollow) ||
		     survey->items[i].index * CHUNK_BYTES < block_part_begins(block, block->parts_left)))
			chunk_drop(item_chunk(&survey->items[i]));
	}
}

bool stream_out(struct moved *moved, struct survey *survey)
{
	struct departure departure = {.moved = moved, .survey = survey, .got_host_ns = clock_ns()};
	struct window windows[2] = {{.mark = 0}, {.mark = 1}}, *next = &windows[0], *under_way = &windows[1];
	bool is_parked = false, goes_on = true;
	uint64_t begin = clock_ns();
	struct piece part;

	departure.walk = (struct walk){.survey = survey, .back = true,
				       .most = moved->move.hands_over ? HANDED_WINDOW_BYTES : WINDOW_BYTES};
	while (goes_on && (under_way->count || walk_next(&departure.walk, &part))) {
		struct window *done = under_way;
		const char *why = NULL;

		next_window(&departure, next);
		if (atomic_load(&gate.dying))
			why = "the process is about to end";
		else if (next->count && begin_copies(survey, next, &moved->copied) != CUDA_SUCCESS)
			why = "the driver could not copy all of the GPU's memory out";
		else if (done->count)
			why = finish(moved, survey, done);
		else if (!next->count)
			goes_on = wait_for_host_memory(&departure);
		is_parked = is_parked || (!why && done->count);
		if (why)
			outcome_is(moved, AFFINODE_FAILED, why);
		goes_on = goes_on && !why;
		under_way = next;
		next = done;
	}
	survey_finish_transfers(survey);
	log_line("park: copied and released in %.1f ms", (double)(clock_ns() - begin) / 1e6);
	if (moved->status == AFFINODE_OK)
		return true;
	if (moved->move.hands_over)
		give_up_copies(survey);
	if (moved->status == AFFINODE_NO_HOST_ROOM)
		slabs_for_copies(survey, &moved->bytes);
	return is_parked;
}
