/* The host copy of one block, chunk by chunk. It outlives the resume: what has not changed by the next park is not copied
 * again.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "host/chunk.h"
#include "host/slabs.h"

enum chunk_kind {
	CHUNK_NONE,  /* no copy */
	CHUNK_STALE, /* a slot, whose contents are of no use */
	CHUNK_ZERO,  /* nothing but zeros: no slot */
	CHUNK_HELD,  /* the contents are in the slot */
	CHUNK_SPILLED, /* the contents are at the place in the spill file: no slot */
};

struct chunk {
	struct digest digest; /* of what is held, if `digested` */
	struct host_slot slot;     /* of STALE and HELD */
	uint32_t place;            /* of SPILLED */
	uint8_t kind;
	bool digested;
	bool was_on_disk; /* HELD, and read from there: what is wrong with it is so for good */
};

struct copy {
	size_t bytes;
	size_t count;
	struct copy *next; /* for lists of copies that are taken from their blocks */
	struct chunk chunks[];
};

/* An empty copy of `bytes`; NULL: no memory.  */
struct copy *copy_new(size_t bytes);

/* Bytes of the chunk at `index`: CHUNK_BYTES, but for a last one of a block that is no multiple.  */
static inline size_t chunk_size(const struct copy *copy, size_t index)
{
	size_t left = copy->bytes - index * CHUNK_BYTES;

	return left < CHUNK_BYTES ? left : CHUNK_BYTES;
}

static inline bool chunk_has_slot(const struct chunk *chunk)
{
	return chunk->kind == CHUNK_STALE || chunk->kind == CHUNK_HELD;
}

/* Give the chunk's slot or place back, if it has one: the kind is NONE afterwards.  */
void chunk_drop(struct chunk *chunk);

/* What is HELD in its slot has been written to the place: it is SPILLED from now on.  */
void chunk_to_disk(struct chunk *chunk, uint32_t place);

/* What is SPILLED has been read into the slot: it is HELD there from now on.  */
void chunk_from_disk(struct chunk *chunk, const struct host_slot *slot);

/* Give everything back; NULL is allowed. By any thread.  */
void copy_drop(struct copy *copy);


/* Move a copy that holds slots to the list, and count what they take.  */
void copy_take(struct copy **copy, struct copy **list, uint64_t *bytes);

/* A stretch of chunks that lie side by side on the GPU, and in one slab or in the spill file.  */
struct stretch {
	struct context *context;
	CUdeviceptr device;
	struct host_slot host;
	uint32_t place; /* 0: in a slab */
	size_t bytes;
};
