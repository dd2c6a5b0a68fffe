/* Peer access: which contexts may reach whose memory. With cuMemAlloc's memory the driver sees to it; backed memory has to
 * be told device by device.  */
#pragma once

#include "gpu/contexts.h"

/* Let `accessor` reach all memory of `owner`, also what it will have; and no longer. Called inside the gate, or with the mover kept
 * from working.  */
void peers_enabled(struct context *accessor, struct context *owner);
void peers_disabled(CUcontext accessor, CUcontext owner);

/* Forget what a context that ends was allowed to reach, and which contexts could reach its memory.  */
void peers_drop_context(CUcontext handle);
