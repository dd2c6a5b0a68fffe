/* Copies of host memory that is not registered (the driver would not, or the context is to leave the GPU), by way of a ring of
 * pinned pieces: the GPU copies between its memory and the ring while threads copy between the ring and the slabs. The
 * driver's own way for such memory takes one thread (18 GiB/s out of an H200 and 9.5 into it, where pinned memory gives 51).
 * Of the mover's thread alone.  */
#pragma once

#include <stdbool.h>

#include "gpu/contexts.h"
#include "host/host_copy.h"

/* The context has a ring, from now on at least; false: the driver refuses that too. The context is current.  */
bool staging_is_possible(struct context *context);

/* Begin a copy; waits until the last few pieces of it have found room in the ring. The context is current.  */
CUresult staging_copy(const struct stretch *stretch, bool out);

/* Wait for every piece: what went out is in its slab, what goes in has been given to the context's stream. Threads end
 * with the last ring that is finished. What failed since the last time.  */
CUresult staging_finish(struct context *context);

/* Of two marks: the pieces begun so far, and a wait until the GPU is done with them, too. What failed since the ring was last
 * finished.  */
void staging_mark(struct context *context, unsigned mark);
CUresult staging_wait_for(struct context *context, unsigned mark);

/* Pinned bytes of all rings. Callable by any thread.  */
uint64_t staging_bytes(void);

/* Give back the rings' pinned memory; the next copy that needs one makes it again. Not beside a move. False: not while a
 * context is being ended.  */
bool staging_trim(void);

/* Overwrite what was copied last with zeros: it means nothing between moves, and would be in the process's image. Not beside a
 * move, and only while the contexts are off the GPU.  */
void staging_wipe(void);

/* The context is gone, and the driver took the pinned memory with it. By any thread, not beside a move.  */
void staging_forget(struct context *context);
