#include "mover/streaming_out.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/monotonic_futex.h"
#include "driver/real_driver.h"
#include "gate/gate.h"
#include "mover/copies.h"
#include "mover/copying_out.h"

/* 5 ms of copying at 50 GiB/s: what looking at it and releasing it takes is less, and goes on beside the next one's copies.  */
#define WINDOW_BYTES (256ull << 20)
#define WINDOW_PIECES 128
/* How often a window that was written to past the gate is copied again.  */
#define COPIED_AGAIN 3

/* The last parts that a block has, all but the first `keep`.  */
struct piece {
	struct block *block;
	unsigned keep;
	size_t begin, end; /* items */
};

struct window {
	struct context *context;
	unsigned mark;
	struct piece pieces[WINDOW_PIECES];
	size_t count, bytes;
};

/* What is not in a window yet.  */
struct remainder {
	struct survey *survey;
	size_t block; /* in the survey */
	size_t items; /* where that block's begin */
	unsigned parts; /* of that block; 0: all */
};

static void add_piece(struct remainder *rest, struct window *window)
{
	struct block *block = rest->survey->blocks[rest->block];
	unsigned keep = rest->parts ? rest->parts : block_parts(block);
	size_t end = block_part_begins(block, keep), begin;

	do
		begin = block_part_begins(block, --keep);
	while (keep && window->bytes + end - begin < WINDOW_BYTES);
	window->pieces[window->count++] = (struct piece){block, keep, rest->items + begin / CHUNK_BYTES,
							 rest->items + (end + CHUNK_BYTES - 1) / CHUNK_BYTES};
	window->bytes += end - begin;
	rest->parts = keep;
	if (keep == 0) {
		rest->items += block->copy->count;
		rest->block++;
	}
}

/* Blocks in turn, each from its end. Empty: there is nothing left.  */
static void next_window(struct remainder *rest, struct window *window)
{
	window->count = window->bytes = 0;
	while (rest->block < rest->survey->block_count && window->count < WINDOW_PIECES && window->bytes < WINDOW_BYTES) {
		struct context *context = rest->survey->blocks[rest->block]->context;

		if (window->count && context != window->context)
			break;
		window->context = context;
		add_piece(rest, window);
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

static CUresult digest(struct survey *survey, const struct window *window)
{
	struct digested **list = malloc((window->bytes / CHUNK_BYTES + window->count) * sizeof(*list));
	CUresult result = CUDA_SUCCESS;
	size_t n = 0;

	if (!list)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < window->count; i++)
		for (size_t at = window->pieces[i].begin; at < window->pieces[i].end; at++)
			if (survey->items[at].digestible)
				list[n++] = &survey->items[at].now;
	if (n)
		result = digest_compute(window->context, list, n);
	free(list);
	return result;
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
		result = digest(survey, window);
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

	block_set_parts_left(block, piece->keep);
	is_gone = block_keep(block, piece->keep) == CUDA_SUCCESS;
	block_set_hollow(block, !is_gone && block->resident);
	if (is_gone)
		moved->bytes += before - block_part_begins(block, piece->keep);
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

bool stream_out(struct moved *moved, struct survey *survey)
{
	struct remainder rest = {.survey = survey};
	struct window windows[2] = {{.mark = 0}, {.mark = 1}}, *now = &windows[0], *next = &windows[1];
	uint64_t begin = clock_ns();
	const char *why = NULL;
	bool is_parked = false;

	next_window(&rest, now);
	if (now->count && begin_copies(survey, now, &moved->copied) != CUDA_SUCCESS)
		why = "the driver could not copy the GPU's memory out";
	while (now->count && !why) {
		struct window *done = now;

		next_window(&rest, next);
		if (atomic_load(&gate.dying))
			why = "the process is about to end";
		else if (next->count && begin_copies(survey, next, &moved->copied) != CUDA_SUCCESS)
			why = "the driver could not copy all of the GPU's memory out";
		else
			why = finish(moved, survey, done);
		is_parked = is_parked || !why;
		now = next;
		next = done;
	}
	survey_finish_transfers(survey);
	log_line("park: copied and released in %.1f ms", (double)(clock_ns() - begin) / 1e6);
	if (why)
		outcome_is(moved, AFFINODE_FAILED, why);
	return is_parked || !why;
}
