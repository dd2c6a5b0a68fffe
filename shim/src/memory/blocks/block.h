/* Backed allocations: device memory whose address stays while its physical memory comes and goes.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "driver/cuda_types.h"
#include "gpu/contexts.h"

struct copy;

struct block {
	CUdeviceptr address;
	size_t size;   /* as asked for, bytes */
	size_t mapped; /* rounded up to the device's granularity */
	struct context *context;
	/* The physical memory, in parts of `part_bytes` but for a shorter last one: `handle` if there is only one, else
	 * `handles`, kept as long as the block. The first `parts_created` of them exist, the first `parts_mapped` are
	 * mapped. Of a block that is not resident, or hollow, the first `parts_left` have their contents on the GPU still.  */
	CUmemGenericAllocationHandle handle, *handles;
	unsigned parts, parts_created, parts_mapped, parts_left;
	size_t part_bytes;
	bool resident;       /* all of it exists and is mapped */
	bool access_is_due;  /* what was mapped last could not be made accessible */
	bool hollow;         /* has physical memory, but the contents are in the copy: it could not be unmapped */
	bool shared;         /* another device or process knows the physical memory: stays where it is */
	bool imported;       /* another process's, mapped here by legacy IPC; shared too */
	bool sync_memops, sync_memops_off; /* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS was set, or cleared; else it reads as set */
	struct copy *copy;   /* its contents in host memory: of a parked block all, of a resident one what the last park left */
	uint64_t id;         /* CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, unique in the process; of a block of ours the buffer's too */
	uint64_t buffer_id;  /* CU_POINTER_ATTRIBUTE_BUFFER_ID: in what is found, as the next one */
	bool decompresses;   /* the decompression engine may be given it */
	struct block *next_doomed;
	struct mapping *mapping; /* an application's own cuMemCreate allocation (app_mappings.h); NULL: backed by us */
};

/* As many descriptors as one message carries, and some to spare (SCM_MAX_FD is 253).  */
#define BLOCK_PARTS_MAX 240

#define BACKED_FROM_BYTES (2ull << 20)

/* The parts of the shim that read blocks, and that share them: given at the start.  */
struct block_users {
	bool (*is_copying)(void); /* the application's memory is being read with the gate open */
	void (*reap)(void);       /* free doomed blocks if the mover is not at work */
	void (*wake)(void);       /* something was left for it to free */
	void (*shared_block_ends)(CUdeviceptr address); /* no other process may open it from now on */
};
void blocks_set_users(const struct block_users *now);

/* Reserve addresses, create memory and map it, as cuMemAlloc would. CUDA_ERROR_NOT_SUPPORTED: the caller leaves the allocation to
 * the driver. Called inside the gate.  */
CUresult block_allocate(size_t size, CUdeviceptr *address);

/* Free the block that begins at `address` as cuMemFree would: wait for the GPU's work, then give the memory back. Return false if
 * it is not ours. At a closed gate, and while a capture is open, the block goes on the doomed list, and the mover or a later
 * free ends it.  */
bool block_free(CUdeviceptr address);

/* Map another process's memory of legacy IPC in the current context. The handles are the block's from then on. block_end_import
 * frees it as block_free does; it returns false where there is no such block.  */
CUresult block_import(const CUmemGenericAllocationHandle *handles, unsigned parts, size_t size, size_t mapped,
		      CUdeviceptr *address);
bool block_end_import(CUdeviceptr address);

/* Copy the handles behind the block that contains `address`, and its description to *found. The block stays on the GPU from now
 * on, since another process will write to this memory. Return how many handles; 0: it is not ours, or another process's.  */
unsigned block_share(CUdeviceptr address, struct block *found, CUmemGenericAllocationHandle handles[BLOCK_PARTS_MAX]);

/* An id that no memory of this process has had.  */
uint64_t block_new_id(void);

/* Free the blocks on the doomed list. The caller is inside the gate, or is the mover.  */
void blocks_reap(bool synchronise);

/* Give up the host copies of doomed blocks alone, while the driver holds the process: freeing the blocks waits until it is back. Called
 * by the thread that keeps the mover from working.  */
void blocks_give_up_doomed_copies(void);

/* Whether the doomed list has any.  */
bool blocks_wait_to_be_freed(void);

/* Describe the block that contains `address`: its place, size, context and ids. Return false if it is not ours.  */
bool block_find(CUdeviceptr address, struct block *found);

/* All blocks that can move, the application's own mappings too, for the mover; an array of pointers to be freed
 * with free(), NULL: no memory. Blocks in it stay allocated while the gate is closed, and while frees wait for the mover (is_copying).  */
struct block **blocks_list(size_t *count);
size_t blocks_resident_bytes(void);
/* Whether any that can move belongs to that context, which is what it is copied in.  */
bool blocks_are_in(const struct context *context);

/* Create the physical memory that a reserved block lacks. On failure the block has what it had.  */
CUresult block_create(struct block *block);
/* Map what is not mapped yet. On failure some of it may be mapped; block_unmap undoes that.  */
CUresult block_map(struct block *block);
/* Unmap and release a block. On failure it keeps its physical memory, and some addresses may have lost theirs.  */
CUresult block_unmap(struct block *block);

/* Part by part, from the first on. Blocks that are not cut have one part.  */
unsigned block_parts(const struct block *block);
/* Where a part begins in its block, in bytes; of the number of parts: where the block ends.  */
size_t block_part_begins(const struct block *block, unsigned part);
/* Bytes from its beginning that can be used.  */
size_t block_usable_bytes(const struct block *block);
/* Create one more part, map it and make it accessible. On failure a part may exist that is not mapped; block_keep releases it.  */
CUresult block_grow(struct block *block);
/* Unmap and release all but the first `parts` parts. On failure all keep their contents, and the block is as it was.  */
CUresult block_keep(struct block *block, unsigned parts);
void block_set_parts_left(struct block *block, unsigned parts);
void block_set_resident(struct block *block, bool resident);
void block_set_hollow(struct block *block, bool hollow);

/* Keep the blocks in this range on the GPU from now on.  */
void blocks_keep_on_gpu(CUdeviceptr address, size_t size);

/* Which devices (bits) may reach all blocks of another, from now on.  */
void blocks_set_peers(struct device *owner, uint32_t peers);

/* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of the block that contains `address`; false: not ours. Set, the block stays on
 * the GPU: it is set for memory that a network card will reach. And whether any block has it.  */
bool block_set_sync_memops(CUdeviceptr address, bool set);
bool blocks_have_sync_memops(void);

/* Free a context's blocks without waiting, as it is gone or about to go.  */
void blocks_drop_context(CUcontext handle);

/* Bytes by device, for the page, `shared` and `mapped` (the application's own) those that cannot move;
 * false: nothing changed since `*generation`.  */
struct block_bytes {
	uint64_t resident, parked;
};
bool blocks_sum(struct block_bytes bytes[AFFINODE_MAX_GPUS], uint64_t shared[AFFINODE_MAX_GPUS],
		uint64_t mapped[AFFINODE_MAX_GPUS], uint64_t *generation);
void blocks_changed(void);

/* Show each copy that the last park left of a resident block, the application's own mappings too. `see` may change it, or take it and
 * leave NULL. Nothing is freed meanwhile, with the gate open either.  */
void blocks_see_retained_copies(void (*see)(struct copy **copy, void *what), void *what);
