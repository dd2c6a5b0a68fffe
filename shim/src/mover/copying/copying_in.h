/* Filling device memory from its copies, and seeing that what came is what went.  */
#ifndef AFFINODE_COPYING_IN_H
#define AFFINODE_COPYING_IN_H

#include <stddef.h>

#include "mover/copying/move_plan.h"

/* How often a chunk that came back wrong is copied again before the resume is given up.  */
#define MENDINGS 3

/* The block's context is the current one from now on.  */
CUresult use_context_of(const struct block *block);

/* Begin to fill the items from *at on, up to `end` at most: one stretch of one kind in one block. *at: the item after it.  */
CUresult copy_in_next(struct survey *survey, size_t *at, size_t end);

/* Of items that were digested: chunks that are not what they were, and of these, from disk.  */
struct wrong {
	size_t chunks, on_disk;
};

/* Count those, and begin to fill them again if that is wished for.  */
CUresult find_wrong(struct survey *survey, size_t begin, size_t end, bool fill_again, struct wrong *wrong);

/* Say so, and count them on the page.  */
void note_mended(const struct wrong *wrong);

#endif
