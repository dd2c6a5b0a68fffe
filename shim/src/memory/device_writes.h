/* Devices that read and write GPU memory without a CUDA call: RDMA, GPUDirect Storage, GDRCopy. A process that has one open
 * keeps its memory on the GPU.  */
#pragma once

#include <stdbool.h>

#include "base/reasons.h"

/* Return why the memory stays on the GPU, or NO_REASON if no such device is open. The process's descriptors are read anew for `now`, else
 * every few seconds. Called by any thread.  */
enum reason device_writes_reason(bool now);
