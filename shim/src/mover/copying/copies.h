/* Copies between a block's device memory and its host copy, asynchronous and bounded.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "gpu/contexts.h"
#include "host/host_copy.h"

/* Make the context's events, by which copies are bounded and waited for.  */
CUresult transfers_make_ready(struct context *context);

/* Begin a copy, out of the GPU or in. Wait first until few copies are under way in that context, so that a park that is revoked
 * ends soon. Does nothing for an empty stretch.  */
CUresult transfer_begin(const struct stretch *stretch, bool out);

/* Begin to fill device memory with zeros.  */
CUresult transfer_zeros(struct context *context, CUdeviceptr device, size_t bytes);

/* Mark (0 or 1) what was begun in that context so far, and wait for what was marked while later copies go on. An error may be that of a
 * later copy; transfers_finish must follow it.  */
CUresult transfers_mark(struct context *context, unsigned mark);
CUresult transfers_wait_for(struct context *context, unsigned mark);

/* Wait for everything begun in that context.  */
CUresult transfers_finish(struct context *context);
