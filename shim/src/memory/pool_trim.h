/* Stream-ordered memory pools. Memory in use stays on the GPU; memory that a pool only caches can be given back.  */
#pragma once

#include "gpu/contexts.h"

/* Note that the application allocates from the device's pools, that it made a pool, or that it is about to end one.  */
void pools_note_device(const struct device *device);
void pool_note(CUmemoryPool pool);
void pool_forget(CUmemoryPool pool);

/* Give back to the GPU what pools and graphs cache, and return how many bytes that was, as far as the driver tells. Called by the mover
 * once the rest is parked: pools fill again when they are used. A driver without such calls is no error.  */
uint64_t pools_trim(void);
