/* Copies between a block's device memory and its host copy, asynchronous and bounded.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "gpu/contexts.h"
#include "host/host_copy.h"

/* Events for a context's ring, made with the rest of it. False: the driver refused.  */
bool transfers_make_ready(struct context *context);

/* Begin a copy; waits until no more than a few are under way in that context. An empty stretch is nothing.  */
CUresult transfer_begin(const struct stretch *stretch, bool out);

/* Begin to fill device memory with zeros.  */
CUresult transfer_zeros(struct context *context, CUdeviceptr device, size_t bytes);

/* Of two marks (0, 1): what was begun in that context so far, and a wait for it, whatever was begun afterwards. What failed by then,
 * of later copies too; transfers_finish is due then.  */
CUresult transfers_mark(struct context *context, unsigned mark);
CUresult transfers_wait_for(struct context *context, unsigned mark);

/* Wait for everything begun in that context.  */
CUresult transfers_finish(struct context *context);
