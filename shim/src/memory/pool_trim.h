/* Stream-ordered memory pools. Their memory stays on the GPU, but what they only keep for later can go.  */
#pragma once

#include "gpu/contexts.h"

/* The application allocates from the device's pools; it made a pool; it is about to end one.  */
void pools_note_device(const struct device *device);
void pool_note(CUmemoryPool pool);
void pool_forget(CUmemoryPool pool);

/* Give back to the GPU what pools and graphs keep but do not use; bytes, as far as the driver tells. For the mover, with
 * the rest parked: the pools fill again when they are used. A driver that cannot is no error.  */
uint64_t pools_trim(void);
