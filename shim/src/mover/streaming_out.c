#include "mover/streaming_out.h"

#include "base/log.h"
#include "base/monotonic_futex.h"
#include "driver/real_driver.h"
#include "gate/gate.h"
#include "mover/copying/copies.h"
#include "mover/copying/copying_out.h"

/* What may be released while one window is copied. On an H200 that takes a fourteenth of the time that copying does.  */
#define RELEASED_PER_COPIED 12
/* How often a window that was written to past the gate is copied again.  */
#define COPIED_AGAIN 3

/* Items of one context.  */
struct window {
	struct context *context;
	unsigned mark; /* 0 or 1, for its copies */
	size_t begin, end;
};

/* From the survey's end to its beginning: the items before `at` are in no window yet.  */
struct walk {
	size_t most; /* items in a window, but for a larger part */
	size_t at;
};

struct departure {
	struct moved *moved;
	struct survey *survey;
	struct walk copies, releases;
	unsigned mark; /* of the copies that were begun last */
	uint64_t got_host_ns; /* when it last had host memory to go on with */
	struct {
		uint64_t copies, releases, host_memory;
	} spent_ns; /* waiting for them, and with them */
};

static void window_empty(const struct walk *walk, struct window *window)
{
	window->begin = window->end = walk->at;
}

static bool window_is_empty(const struct window *window)
{
	return window->begin == window->end;
}

/* The walk's next part; false: there is none that has its place in the window.  */
static bool next_part(const struct survey *survey, const struct walk *walk, const struct window *window, struct part *part)
{
	if (walk->at == 0)
		return false;
	*part = part_of(survey, walk->at - 1);
	return window_is_empty(window) ||
	       (part->block->context == window->context && window->end - part->begin <= walk->most);
}

static void window_add(struct walk *walk, struct window *window, const struct part *part)
{
	window->context = part->block->context;
	walk->at = window->begin = part->begin;
}

static bool has_slots(size_t slots)
{
	if (slots == 0 || slots_free() >= slots)
		return true;
	return slabs_take_lots() > 0 && slots_free() >= slots;
}

/* What there is host memory for: where it is handed over there may be none for the next part, nor a window.  */
static void next_window(struct departure *departure, struct window *window)
{
	struct part part;
	size_t slots = 0;

	window_empty(&departure->copies, window);
	while (next_part(departure->survey, &departure->copies, window, &part)) {
		if (move_hands_over(&departure->moved->move)) {
			slots += slots_needed(departure->survey, part.begin, part.end);
			if (!has_slots(slots))
				return;
		}
		window_add(&departure->copies, window, &part);
		departure->got_host_ns = clock_ns();
	}
}

static CUresult begin_copies(struct survey *survey, const struct window *window, uint64_t *copied)
{
	struct lane lane = {.context = window->context, .begin = window->begin, .end = window->end, .at = window->begin};
	CUresult result = copy_lane_out(survey, &lane, copied);

	return result == CUDA_SUCCESS ? transfers_mark(window->context, window->mark) : result;
}

/* Until the host has what is in it now, by a digest that was taken after the copy. *is_known: it has.  */
static CUresult complete(struct survey *survey, struct window *window, uint64_t *copied, bool *is_known)
{
	CUresult result = transfers_wait_for(window->context, window->mark);

	*is_known = false;
	for (int again = 0; result == CUDA_SUCCESS; again++) {
		result = survey_digest(survey, window->begin, window->end);
		*is_known = result == CUDA_SUCCESS && host_has(survey, window->begin, window->end);
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
static void release_from(struct moved *moved, const struct part *part)
{
	struct block *block = part->block;
	size_t before = block_usable_bytes(block);
	bool is_gone;

	block_set_parts_left(block, part->number);
	is_gone = block_keep(block, part->number) == CUDA_SUCCESS;
	block_set_hollow(block, !is_gone && block->resident);
	if (is_gone)
		moved->bytes += before - block_part_begins(block, part->number);
}

static bool release_window(struct moved *moved, struct survey *survey, const struct window *window)
{
	if (driver.cuCtxSetCurrent(window->context->handle) != CUDA_SUCCESS)
		return false;
	moved->zeros += settle_items(survey, window->begin, window->end);
	for (size_t at = window->begin; at < window->end;) {
		struct part first = part_of(survey, at);

		release_from(moved, &first);
		at = survey->begins[survey->items[at].block_number + 1];
	}
	blocks_changed();
	return true;
}

/* NO_REASON, or what was in the way.  */
static enum reason finish(struct departure *departure, struct window *window)
{
	uint64_t begin = clock_ns();
	bool is_known, is_released;
	CUresult result = complete(departure->survey, window, &departure->moved->copied, &is_known);

	begin = add_since(&departure->spent_ns.copies, begin);
	if (result != CUDA_SUCCESS)
		return REASON_NOT_ALL_COPIED_OUT;
	if (!is_known)
		return REASON_WRITTEN_TO;
	is_released = release_window(departure->moved, departure->survey, window);
	add_since(&departure->spent_ns.releases, begin);
	return is_released ? NO_REASON : REASON_NOT_RELEASED;
}

/* Nothing is under way, and there is no host memory for the next part. False: none comes.  */
static bool wait_for_host_memory(struct departure *departure)
{
	uint64_t begin = clock_ns();

	if (mover_is_aborted() || begin - departure->got_host_ns >= AFFINODE_STREAM_MS * MS_NS)
		return false;
	pthread_mutex_lock(&mover_queue.lock);
	mover_wait_for_change(MS_NS);
	pthread_mutex_unlock(&mover_queue.lock);
	add_since(&departure->spent_ns.host_memory, begin);
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

static bool begin_window(struct departure *departure)
{
	struct window window = {.mark = !departure->mark};

	next_window(departure, &window);
	if (window_is_empty(&window))
		return true;
	departure->mark = window.mark;
	return begin_copies(departure->survey, &window, &departure->moved->copied) == CUDA_SUCCESS;
}

/* Of what has not left: from that item on, as far as a window goes.  */
static void leaving_window(struct departure *departure, size_t from, struct window *window)
{
	struct part part;

	window_empty(&departure->releases, window);
	while (next_part(departure->survey, &departure->releases, window, &part) && part.begin >= from)
		window_add(&departure->releases, window, &part);
}

/* What was copied is released while the next window is being copied. NO_REASON, or what was in the way; the outcome may say so too.  */
static enum reason go_on(struct departure *departure, bool *is_parked)
{
	struct window leaving = {.mark = departure->mark};
	size_t copied = departure->copies.at; /* from here on */
	enum reason why;

	if (atomic_load(&gate.dying))
		return REASON_PROCESS_ENDS;
	if (!begin_window(departure))
		return REASON_NOT_ALL_COPIED_OUT;
	leaving_window(departure, copied, &leaving);
	if (window_is_empty(&leaving))
		return departure->copies.at < copied || wait_for_host_memory(departure) ? NO_REASON : REASON_NO_HOST_MEMORY_COMES;
	why = finish(departure, &leaving);
	*is_parked = *is_parked || !why;
	return why;
}

size_t stream_leave_some(const struct survey *survey)
{
	size_t budget = survey->item_count / (RELEASED_PER_COPIED + 1), needed = 0, leaves = 0;
	struct part part;

	for (size_t i = 0; i < survey->item_count; i++)
		needed += !host_has(survey, i, i + 1);
	if (survey->lane_count != 1 || needed <= budget)
		return 0;
	needed = 0;
	for (size_t at = 0; at < survey->item_count; at = part.end) {
		part = part_of(survey, at);
		for (size_t i = part.begin; i < part.end; i++)
			needed += !host_has(survey, i, i + 1);
		if (needed > budget)
			break;
		leaves = needed ? part.end : 0;
	}
	return leaves;
}

bool stream_out(struct moved *moved, struct survey *survey, size_t uncopied)
{
	size_t most = items_in_window(&moved->move);
	struct departure departure = {.moved = moved, .survey = survey, .got_host_ns = clock_ns()};
	uint64_t begin = clock_ns();
	enum reason why = NO_REASON;
	bool is_parked = false;

	departure.copies = (struct walk){most, uncopied};
	departure.releases = (struct walk){RELEASED_PER_COPIED * most, survey->item_count};
	while (!why && departure.releases.at > 0)
		why = go_on(&departure, &is_parked);
	survey_finish_transfers(survey);
	log_line("park: left part by part in %.1f ms: waited %.1f for copies and %.1f for host memory, released in %.1f",
		 (double)(clock_ns() - begin) / 1e6, (double)departure.spent_ns.copies / 1e6,
		 (double)departure.spent_ns.host_memory / 1e6, (double)departure.spent_ns.releases / 1e6);
	if (why)
		outcome_is(moved, why == REASON_NO_HOST_MEMORY_COMES ? AFFINODE_NO_HOST_ROOM : AFFINODE_FAILED, why);
	if (moved->status == AFFINODE_OK)
		return true;
	if (move_hands_over(&moved->move))
		give_up_copies(survey);
	if (moved->status == AFFINODE_NO_HOST_ROOM)
		slabs_for_copies(survey, &moved->bytes);
	return is_parked;
}
