/* Managed memory moves by itself: the driver brings a page to the processor that touches it. When the rest is
 * parked it is sent to the host, and comes back page by page as it is used.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "gpu/contexts.h"

/* Made by the application; about to be freed (any address may be asked).  */
void managed_note(CUdeviceptr address, size_t size, const struct device *device);
void managed_forget(CUdeviceptr address);

/* How much host memory managed_prefetch_out may take at most.  */
uint64_t managed_bytes(void);

/* Send it to the host, as far as the driver does so; bytes. For the mover, at the closed gate with the GPU idle, and
 * before the process is called parked. It stops between pieces when `stop` (if any) says so: nothing has to be undone,
 * neither then nor at a resume.  */
uint64_t managed_prefetch_out(bool (*stop)(void));

/* Of a device's managed bytes, those known to be on the host: while parked, what was sent there. No driver tells where
 * managed memory is, so all of it counts as on the GPU from the moment that it may be touched.  */
uint64_t managed_bytes_out(int device);
