/* Device memory that the driver hands out by itself: blocks, and small pieces of shared 2 MiB slabs.  */
#pragma once

#include "context/context.h"
#include "memory/ranges.h"

/* Charge, back and map `size` bytes of a context's GPU as a range of that kind; its `charged` is what it costs.  */
CUresult memory_new_block(CUcontext context, enum range_kind kind, uint64_t size, void *owner, CUdeviceptr *address);
/* Give a block back; the tables are held for writing.  */
void memory_drop_block(struct range *range);
/* Give back whatever the range is: a block, a piece of a slab, a pool's, host memory. The tables are held for writing.  */
void memory_drop(struct range *range);
/* Free all that dies with a context.  */
void memory_release_context(CUcontext context);

/* Pieces of a slab (slab.c). The tables are held for writing.  */
CUresult slab_take(CUcontext context, uint64_t size, CUdeviceptr *address);
void slab_drop(CUcontext context, struct range *range);
void slabs_release(CUcontext context);
#define SLAB_LARGEST (1ull << 20)

/* Whether the process has managed memory, which the driver's checkpoint refuses.  */
bool managed_exists(void);
