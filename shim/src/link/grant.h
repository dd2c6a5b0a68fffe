/* The grant: the signed text that says whose process this is, passed on without being understood.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "protocol.h"

/* Begin to read the grant's file for a new connection, if one is named, on a thread of its own, since the file's disk may hang; the
 * thread calls link_wake when it has read it. grant_is_ready returns whether the file was read, or is not waited for any more.  */
void grant_begin(void);
bool grant_is_ready(void);

/* Copy the grant and return its size; 0 if there is none. The file's goes before the environment's, which is also taken where the file
 * could not be read in time.  */
size_t grant_take(char text[AFFINODE_GRANT_SIZE]);

/* Send the grant after HELLO, unless it is empty. Return 0 or a negative errno.  */
int grant_send(int fd, const char *text, size_t size);
