/* NVML in a process that may leave the GPU. While the driver holds a process no call of NVML comes back in it either
 * (seen on an H200 with driver 580.159.04: nvmlInit waits for a mutex), unseen and uncancellable, and PyTorch asks NVML
 * how many GPUs there are. So such calls are stopped before it, and want the GPU as any other call does.
 *
 * That goes for functions that are looked up by dlsym and for those that a library is linked to. A process that has NVML loaded, and
 * in which neither was seen yet, stays at memory depth: a library that was loaded with RTLD_DEEPBIND calls past the shim.  */
#pragma once

#include <stdbool.h>

#include "base/reasons.h"

/* Return why the process should not leave the GPU now: NVML is asked in it every few seconds, which is no matter if it `ends`
 * afterwards, or calls would pass the shim by; NO_REASON if nothing is against it.  */
enum reason nvml_objection(bool ends);
