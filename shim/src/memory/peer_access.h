/* Peer access: which contexts may reach whose memory. With cuMemAlloc's memory the driver sees to it; backed memory has to
 * be told device by device.  */
#pragma once

#include "gpu/contexts.h"

/* `accessor` may reach all that `owner` has, had and will have; and no longer. Inside the gate, or holding the mover.  */
void peers_enabled(struct context *accessor, struct context *owner);
void peers_disabled(CUcontext accessor, CUcontext owner);

/* The context goes, and what it was allowed, and allowed.  */
void peers_drop_context(CUcontext handle);
