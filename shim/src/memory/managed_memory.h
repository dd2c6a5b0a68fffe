/* Managed memory moves by itself: the driver brings a page to the processor that touches it. When the rest is
 * parked it is sent to the host, and comes back page by page as it is used.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "gpu/contexts.h"

/* Note memory that the application made; and that it is about to free some, which may be at any address.  */
void managed_note(CUdeviceptr address, size_t size, const struct device *device);
void managed_forget(CUdeviceptr address);

/* Return the most host memory that managed_prefetch_out may take.  */
uint64_t managed_bytes(void);

/* Send managed memory to the host, as far as the driver does so, and return how many bytes went. Called by the mover at the closed gate,
 * with the GPU idle, before the process counts as parked. It stops between pieces when `stop` (if any) says so: nothing has to be
 * undone, neither then nor at a resume.  */
uint64_t managed_prefetch_out(bool (*stop)(void));

/* Return how many of a device's managed bytes are known to be on the host: while parked, what was sent there. No driver tells where
 * managed memory is, so all of it counts as on the GPU from the moment that it may be touched.  */
uint64_t managed_bytes_out(int device);
