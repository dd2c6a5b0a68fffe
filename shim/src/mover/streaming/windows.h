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
#define WINDOW_BYTES AFFINODE_WINDOW_BYTES
/* Where memory is handed over neither side may keep much of what the other waits for.  */
#define HANDED_WINDOW_BYTES (WINDOW_BYTES / 2)
#define WINDOW_PIECES 128

/* Parts of a block, from one up to another, and their items.  */
struct piece {
	struct block *block;
	unsigned from, to;
	size_t begin, end;
};

struct window {
	struct context *context;
	unsigned mark; /* 0 or 1, for its copies */
	struct piece pieces[WINDOW_PIECES];
	size_t count, bytes;
};

/* What is not in a window yet.  */
struct walk {
	const struct survey *survey;
	bool back;    /* from the end */
	size_t most;  /* bytes in a window, but for a larger part */
	size_t block; /* in the survey, or blocks done from the end */
	unsigned part; /* parts of it that are done */
};

/* The walk's next part; false: there is none.  */
bool walk_next(const struct walk *walk, struct piece *part);

void window_empty(struct window *window);
/* Whether the part has its place in the window.  */
bool window_takes(const struct walk *walk, const struct window *window, const struct piece *part);
void walk_on(struct walk *walk, const struct piece *part); /* past its next part */

/* Put the walk's next part into the window.  */
void window_add(struct walk *walk, struct window *window, const struct piece *part);

/* Digest what is in it.  */
CUresult window_digest(struct survey *survey, const struct window *window);

#endif
