/* The link's thread: it talks with the node controller and writes the page's samples. It never calls CUDA.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver/cuda_types.h"
#include "gpu/contexts.h"

/* Start the thread. Return 0 or a negative errno.  */
int link_start(void);

/* Note that the process is about to end: waiting calls return CUDA_ERROR_DEINITIALIZED.  */
void shim_set_dying(void);

void link_begin_again(void);

/* The process is another kernel's from now on, as the environment says: have the controller know it by that. The link is made anew,
 * once no move's outcome is owed; a controller knows the process again by its page.  */
void link_introduce_again(void);

/* Write the page's samples. Given to page_set_sampler.  */
void page_take_sample(void);
