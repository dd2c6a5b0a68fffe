/* What the shim is doing, as text: to find the place where a process hangs.  */
#ifndef AFFINODE_DIAGNOSTICS_H
#define AFFINODE_DIAGNOSTICS_H

#include <stddef.h>

/* Write it, cut off where the room ends; the length it would have. Takes no lock that it has to wait for long, and reads
 * nothing that another thread may be writing.  */
int describe(char *text, size_t size);

#endif
