/* Counts the memory that stays on the GPU when the rest is parked, by reason, so that it can be named.  */
#ifndef AFFINODE_TALLY_H
#define AFFINODE_TALLY_H

#include <stdint.h>

#include "gpu/contexts.h"
#include "protocol.h"

/* Keyed by (kind of key, value): pointers, handles and arrays do not collide.  */
enum tally_key { TALLY_POINTER = 0, TALLY_HANDLE = 1, TALLY_ARRAY = 2 };

/* In a context, with which it goes unless it is removed before; NULL: unknown, counted for the first device.  */
void tally_add(enum tally_key kind, uint64_t key, enum affinode_fixed reason, const struct context *context,
	       uint64_t bytes);
void tally_drop_context(const struct context *context);
void tally_remove(enum tally_key kind, uint64_t key);
uint64_t tally_bytes(int device, enum affinode_fixed reason);
#endif
