/* The grant: the signed text that says whose process this is, passed on without being understood.  */
#ifndef AFFINODE_GRANT_H
#define AFFINODE_GRANT_H

#include <stddef.h>

#include "protocol.h"

/* The grant as it is now, its size; 0 if there is none. A file, where one is named, goes before the environment's.  */
size_t grant_read(char text[AFFINODE_GRANT_SIZE]);

/* Send it after HELLO; nothing if it is empty. 0 or a negative errno.  */
int grant_send(int fd, const char *text, size_t size);

#endif
