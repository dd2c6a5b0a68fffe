/* Host memory for one parking: a single mapping, touched before the gate closes, given back at resume.  */
#ifndef AFFINODE_ARENA_H
#define AFFINODE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct arena {
	unsigned char *base;
	size_t size, touched, used;
};

/* Map `size` bytes, untouched, kept out of forks and core dumps; 0 or a negative errno.  */
int arena_map(struct arena *arena, size_t size);

/* Touch up to `size` bytes, in steps, looking at the machine's memory before each; stops early with -EAGAIN when
 * `stop` says so, with -ENOMEM when memory runs short.  */
int arena_touch(struct arena *arena, size_t size, bool (*stop)(void));

/* The next `size` bytes; NULL: not that many left.  */
unsigned char *arena_take(struct arena *arena, size_t size);

void arena_unmap(struct arena *arena);

#endif
