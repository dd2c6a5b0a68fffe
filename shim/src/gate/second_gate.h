/* The second gate, for calls that the first one lets pass: closed while the driver itself holds the process. It is context
 * depth's (bookkeeping_gate.h); here is what the first gate must know of it.  */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

extern _Atomic uint32_t books_closed;

static inline bool books_are_closed(void)
{
	return atomic_load(&books_closed);
}

/* This thread made something current while the driver could not be told: tell it, inside a gate, before anything else.  */
extern __thread bool shadows_behind __attribute__((tls_model("initial-exec")));
extern void (*shadows_tell)(void); /* set before any thread is behind */
static inline void shadows_catch_up(void)
{
	if (__builtin_expect(shadows_behind, 0))
		shadows_tell();
}
