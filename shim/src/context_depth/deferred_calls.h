/* Calls that may be made later: what gives something back, and what marks a point in a stream that has no work.
 * While the driver holds the process they are noted, said to have succeeded, and made, in order, when it is back.  */
#pragma once

#include <stdbool.h>

#include "driver/call_signatures.h"
#include "driver/cuda_types.h"

/* From now on calls may be put off.  */
void deferred_begin(void);

/* Note a call to be made with `context` current: 0, or -EBUSY if there is no more place or the process is back already.  */
int deferred_add(void *real, CUcontext context, W a0, W a1, W a2);

/* Make them all, and take no more; by the mover, before any other call reaches the driver.  */
void deferred_make(void);
