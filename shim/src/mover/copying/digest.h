/* Digests of device memory, chunk by chunk, computed on the GPU at the speed of its memory.
 *
 * NH of UMAC with the Toeplitz construction (CRYPTO 1999): the key is drawn for each process, and any two different
 * chunks have the same digest with a probability of at most 2^-128 over it.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "gpu/contexts.h"
#include "host/chunk.h"

struct digested {
	CUdeviceptr address; /* of a whole chunk */
	struct digest digest;
	bool zero;
};

/* Load the module into the current context and try it against the host's own computation. If that fails, this context has
 * no digests. Calls into the dynamic linker: on the application's thread only.  */
void digest_make_ready(struct context *context);

/* Fill in `digest` and `zero` of each item, all of them in that context's device's memory. Waits for it. By the mover
 * alone.  */
CUresult digest_compute(struct context *context, struct digested **items, size_t count);

void digest_forget(struct context *context);
