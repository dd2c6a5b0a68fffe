/* A context that has failed for good: an illegal address in the application's kernel, say, or a fault of the GPU.
 * Every call in it returns that error from then on, in a new one on that device too, its memory can neither be read
 * nor filled, and only the end of the process ends that.  */
#ifndef AFFINODE_BROKEN_H
#define AFFINODE_BROKEN_H

#include <stdbool.h>
#include <stddef.h>

#include "driver/cuda_types.h"

/* Ask every context; of the mover alone, with the driver there. CUDA_SUCCESS: none has failed, or a stream capture
 * is open, during which it is not asked. The page says so while one has, and the process is not asked to park.  */
CUresult broken_look(void);

/* What happened, for the user.  */
void broken_text(char *text, size_t size);

#endif
