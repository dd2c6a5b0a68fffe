/* NVML in a process that may leave the GPU. While the driver holds a process no call of NVML comes back in it either
 * (seen on an H200 with driver 580.159.04: nvmlInit waits for a mutex), unseen and uncancellable, and PyTorch asks NVML
 * how many GPUs there are. So such calls are stopped before it, and want the GPU as any other call does.
 *
 * Both what is looked up by dlsym and what is linked (nvml_linked_symbols.c). A process that has NVML loaded, and
 * in which neither was seen yet, stays at memory depth: a library that was loaded with RTLD_DEEPBIND calls past us.  */
#pragma once

#include <stdbool.h>

#include "base/reasons.h"
#include "driver/call_signatures.h"

extern struct library nvml_library; /* nvml_linked_symbols.c */

/* What is linked to NVML calls that.  */
W nvml_call(void *real, INT_PARAMETERS);

/* Why the process should not leave the GPU now: it is being watched, or calls would come past us; NO_REASON: nothing.  */
enum reason nvml_objection(void);
