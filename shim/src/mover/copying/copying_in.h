/* Filling device memory from its copies, and seeing that what came is what went.  */
#pragma once

#include <stddef.h>

#include "mover/copying/move_plan.h"

/* The block's context is the current one from now on.  */
CUresult use_context_of(const struct block *block);

/* Begin to fill the items from *at on, up to `end` at most: one stretch of one kind in one block. *at: the item after it.  */
CUresult copy_in_next(struct survey *survey, size_t *at, size_t end);

/* Of items that were digested: chunks that are not what they were, and of these, from disk.  */
struct wrong {
	size_t chunks, on_disk;
};

/* Look at every byte of these items, which are filled. What is wrong is copied again, a few times; then all copies under way are
 * waited for. *wrong: what is wrong still.  */
CUresult put_right(struct survey *survey, size_t begin, size_t end, struct wrong *wrong);
