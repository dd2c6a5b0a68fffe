/* Filling device memory from its copies, and seeing that what came is what went.  */
#pragma once

#include <stddef.h>

#include "mover/copying/move_plan.h"

/* Make the block's context current.  */
CUresult use_context_of(const struct block *block);

/* Begin to fill items from *at on, `end` excluded: as many as lie together, in one block and of one kind. Set *at to the item after
 * them.  */
CUresult copy_in_next(struct survey *survey, size_t *at, size_t end);

/* Chunks whose digests are not those of the park, and how many of these came from the disk.  */
struct wrong {
	size_t chunks, on_disk;
};

/* Compare the digests of these items, which are filled, with those of the park. Copy what is wrong again, a few times, which waits for all
 * copies under way. *wrong: what is wrong in the end.  */
CUresult put_right(struct survey *survey, size_t begin, size_t end, struct wrong *wrong);
