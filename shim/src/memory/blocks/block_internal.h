/* Between block_table.c (the table), block_physical.c (what is behind a block) and block_alloc_free.c (a block's life).  */
#pragma once

#include <pthread.h>

#include "memory/blocks/block.h"

/* Guards the table, and what of a block others than the mover look at.  */
extern pthread_mutex_t blocks_lock;

/* Put the block into the table: 0, or -ENOMEM.  */
int blocks_insert(struct block *block);

/* With the lock held: take the block that begins there, imported or not, out of the table; NULL: none.  */
struct block *blocks_take(CUdeviceptr address, bool imported);

/* With the lock held: take all blocks of a context out, linked by `next_doomed`.  */
struct block *blocks_take_context(CUcontext handle);

static inline CUmemGenericAllocationHandle *block_handles(struct block *block)
{
	return block->handles ? block->handles : &block->handle;
}

/* The parts from `first` on accessible to its own device, and to those that enabled peer access to it, as cuMemAlloc's memory is.  */
CUresult block_set_access(struct block *block, unsigned first);
/* Accessible no longer to these devices (bits).  */
void block_take_access(struct block *block, uint32_t devices);

/* Once in a block's life, before it is in the table: from then on the page's samples ask where its parts begin. At most
 * BLOCK_PARTS_MAX parts. 0, or -ENOMEM for want of memory for their handles.  */
int block_cut_in_parts(struct block *block);

void block_forget_sync_memops(const struct block *block);

/* Unmap what is mapped of it, all at once; what fails can be tried again.  */
CUresult block_unmap_parts(struct block *block);
