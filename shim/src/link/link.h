/* The link thread: talks with the node controller, keeps the page, never calls CUDA.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver/cuda_types.h"
#include "gpu/contexts.h"

/* Start the thread; 0 or a negative errno.  */
int link_start(void);

/* The process is about to end: waiting calls get CUDA_ERROR_DEINITIALIZED.  */
void shim_set_dying(void);

void link_begin_again(void);

/* The page's sampler (page_set_sampler).  */
void page_take_sample(void);
