/* Counts the memory that stays on the GPU when the rest is parked, by reason, so that it can be named.  */
#pragma once

#include <stdint.h>

#include "gpu/contexts.h"
#include "protocol.h"

/* What a key is of: the same number may be a pointer, a handle and an array.  */
enum unmovable_key { UNMOVABLE_POINTER = 0, UNMOVABLE_HANDLE = 1, UNMOVABLE_ARRAY = 2 };

/* Count memory in a context, until it is removed or the context ends. A `context` of NULL is not known: it counts for the first device.  */
void unmovable_add(enum unmovable_key kind, uint64_t key, enum affinode_unmovable reason, const struct context *context,
	       uint64_t bytes);
void unmovable_drop_context(const struct context *context);
void unmovable_remove(enum unmovable_key kind, uint64_t key);
uint64_t unmovable_bytes(int device, enum affinode_unmovable reason);
