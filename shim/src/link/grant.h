/* The grant: the signed text that says whose process this is, passed on without being understood.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "protocol.h"

/* For a new connection: begin to read the grant's file, if one is named, on a thread of its own, since its disk may hang.
 * link_wake is called when it is read. Then, and on: whether there is nothing to wait for, or no longer.  */
void grant_begin(void);
bool grant_is_ready(void);

/* What there is then, its size; 0 if there is none. The file goes before the environment's, which is also taken where the
 * file cannot be read in time.  */
size_t grant_take(char text[AFFINODE_GRANT_SIZE]);

/* Send it after HELLO; nothing if it is empty. 0 or a negative errno.  */
int grant_send(int fd, const char *text, size_t size);
