/* What the shim is doing, as text: for whoever looks for the place where a process hangs.  */
#ifndef AFFINODE_DESCRIBE_H
#define AFFINODE_DESCRIBE_H

#include <stddef.h>
#include <stdio.h>

/* Write it, cut off where the room ends; the length it would have. Takes no lock that it has to wait for long, and reads
 * nothing that another thread may be writing.  */
int describe(char *text, size_t size);

/* The parts that others keep: appended at `at`, the new length.  */
int describe_mover(char *text, size_t size, int at);
int describe_holds(char *text, size_t size, int at);

#define DESCRIBE(...) (at += snprintf(text + ((size_t)at < size ? (size_t)at : size), \
				      (size_t)at < size ? size - (size_t)at : 0, __VA_ARGS__))

#endif
