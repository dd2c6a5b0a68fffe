/* Windows of a move that streams: some of the survey's parts, one after the other, while the next ones are on their way. A park goes
 * from the survey's end to its beginning, a resume from its beginning to its end: so host memory is given back in the order in
 * which it lies together.  */
#ifndef AFFINODE_WINDOWS_H
#define AFFINODE_WINDOWS_H

#include <stdbool.h>
#include <stddef.h>

#include "mover/copying/move_plan.h"
#include "protocol.h"

/* 5 ms of copying at 50 GiB/s: what looking at it and releasing it takes is less, and goes on beside the next one's copies.  */
#define WINDOW_ITEMS (AFFINODE_WINDOW_BYTES / CHUNK_BYTES)
/* Where memory is handed over neither side may keep much of what the other waits for.  */
#define HANDED_WINDOW_ITEMS (WINDOW_ITEMS / 2)

/* A part of a block, and its items.  */
struct part {
	struct block *block;
	unsigned number; /* in the block */
	size_t begin, end;
};

/* The part with that item.  */
struct part part_of(const struct survey *survey, size_t item);

/* Items of one context.  */
struct window {
	struct context *context;
	unsigned mark; /* 0 or 1, for its copies */
	size_t begin, end;
};

/* What is not in a window yet.  */
struct walk {
	const struct survey *survey;
	bool back;   /* from the end */
	size_t most; /* items in a window, but for a larger part */
	size_t at;   /* the next item, or how many are left before it */
};

/* The walk's next part; false: there is none.  */
bool walk_next(const struct walk *walk, struct part *part);

void window_empty(const struct walk *walk, struct window *window);
bool window_is_empty(const struct window *window);
/* Whether the part has its place in the window.  */
bool window_takes(const struct walk *walk, const struct window *window, const struct part *part);
/* Put the walk's next part into the window.  */
void window_add(struct walk *walk, struct window *window, const struct part *part);

/* Add the time since then to what a step has taken; the time now.  */
uint64_t add_since(uint64_t *sum, uint64_t begin_ns);

#endif
