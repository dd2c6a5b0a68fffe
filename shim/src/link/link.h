/* The link thread: talks with the node controller, keeps the page, never calls CUDA.  */
#ifndef AFFINODE_LINK_H
#define AFFINODE_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/contexts.h"
#include "driver/cuda_types.h"

/* Start the thread; 0 or a negative errno.  */
int link_start(void);

/* Something changed: look. Async-signal-safe, never blocks.  */
void link_wake(void);

/* The controller's last words for the person, and " (2nd of 3)" or "".  */
void link_notice_text(char *text, size_t size);
void link_place_text(char *text, size_t size);

bool link_is_connected(void);

void link_reset_in_child(void);

#endif
