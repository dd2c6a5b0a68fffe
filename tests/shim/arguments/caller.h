/* Between caller.c and the typed calls that generate.py writes.  */
#pragma once

#include <string.h>

#include "recording.h"

struct callee {
	const char *name, *base, *signature;
	int since, per_thread;
	int waits;    /* its class waits at a closed gate, so the shim must stand before it */
	void *linked; /* what the linker bound the name to; NULL for one that is not linked to */
	/* Calls `function` by the callee's prototype, arguments taken from `bytes` one after another.  */
	unsigned int (*call)(void *function, const unsigned char *bytes);
};

/* Generated; the last has no name. In the order of the driver's own table.  */
extern const struct callee callees[];

#define CALLER_TAKE(bytes, argument)                                                                                \
	do {                                                                                                        \
		memcpy(&(argument), bytes, sizeof(argument));                                                       \
		bytes += sizeof(argument);                                                                          \
	} while (0)
