/* Devices that read and write GPU memory without a CUDA call: RDMA, GPUDirect Storage, GDRCopy. A process that has one open
 * keeps its memory on the GPU.  */
#pragma once

#include <stdbool.h>

#include "base/reasons.h"

/* Why the memory stays where it is, from a look at the process's descriptors that is not older than a few seconds, or a new
 * one (`now`); NO_REASON: no such device is open. By any thread.  */
enum reason device_writes_reason(bool now);
