/* The host copy of one block, chunk by chunk. It outlives the resume, so that the next park copies only what has changed.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "host/chunk.h"
#include "host/slabs.h"

enum chunk_kind {
	CHUNK_NONE,  /* there is no copy, and no slot for one */
	CHUNK_STALE, /* the slot is reserved, and has contents of an earlier time */
	CHUNK_ZERO,  /* the contents are zeros, which need no slot */
	CHUNK_HELD,  /* the slot has the contents */
	CHUNK_SPILLED, /* a pack has the contents, on disk or in host memory; there is no slot */
};

struct chunk {
	struct digest digest; /* of the contents, where `digested` is set */
	struct host_slot slot;     /* where the kind is STALE or HELD */
	uint32_t place;            /* where the kind is SPILLED */
	uint8_t kind;
	bool digested;
	bool was_on_disk; /* HELD was read from the disk: if it is wrong, there is no other copy to read again */
};

struct copy {
	size_t bytes;
	size_t count;
	struct copy *next; /* links copies that were taken from their blocks */
	struct chunk chunks[];
};

/* Return an empty copy of `bytes`, or NULL for want of memory.  */
struct copy *copy_new(size_t bytes);

/* Return the bytes of the chunk at `index`. The last one of a block may be shorter than CHUNK_BYTES.  */
static inline size_t chunk_size(const struct copy *copy, size_t index)
{
	size_t left = copy->bytes - index * CHUNK_BYTES;

	return left < CHUNK_BYTES ? left : CHUNK_BYTES;
}

static inline bool chunk_has_slot(const struct chunk *chunk)
{
	return chunk->kind == CHUNK_STALE || chunk->kind == CHUNK_HELD;
}

/* Return whether a disk has its contents.  */
bool chunk_is_on_disk(const struct chunk *chunk);

/* Return whether it has a slot, or a place in host memory.  */
bool chunk_takes_memory(const struct chunk *chunk);

/* Give the chunk's slot or place back, if it has one. Its kind is NONE afterwards.  */
void chunk_drop(struct chunk *chunk);

/* Make a HELD chunk, or one of another place, which has been written to that place, SPILLED there, and give its slot or that place back.  */
void chunk_to_place(struct chunk *chunk, uint32_t place);

/* Make a SPILLED chunk, which has been read into that slot, HELD, and give its place back.  */
void chunk_from_disk(struct chunk *chunk, const struct host_slot *slot);

/* Give back all that a copy holds, and the copy; NULL is allowed. Called by any thread.  */
void copy_drop(struct copy *copy);
/* So for all of a list.  */
void copies_drop(struct copy *list);

/* Move a copy that holds slots from its block to `list`, and add what they take to `bytes`.  */
void copy_take(struct copy **copy, struct copy **list, uint64_t *bytes);

/* Chunks that lie side by side on the GPU, and also in one slab or in the spill file: one copy moves them all.  */
struct stretch {
	struct context *context;
	CUdeviceptr device;
	struct host_slot host;
	uint32_t place; /* in the spill file; 0 if they lie in the slab of `host` */
	size_t bytes;
};
