/* The inside of a memory pool, for pool.c (giving and taking) and pool_attributes.c (asking and setting).  */
#pragma once

#include "memory/memory.h"
#include "pool/pool.h"

struct pool_block {
	struct pool_block *next;
	uint64_t start, cost, offset;
};

struct CUmemPoolHandle_st {
	struct object object;
	CUmemoryPool next; /* of all */
	CUdevice device;
	bool is_default, destroyed;
	uint64_t threshold;
	uint64_t reserved; /* what it holds of the GPU */
	uint64_t used;     /* of that, given out */
	struct pool_block *idle;
};

CUmemoryPool pool_new(CUdevice device);
CUmemoryPool pool_default(CUdevice device);
CUmemoryPool pool_current(CUdevice device);
void pool_make_current(CUdevice device, CUmemoryPool pool);
/* The two below with the tables held for writing.  */
void pool_trim(CUmemoryPool pool, uint64_t keep);
void pool_forget(CUmemoryPool pool);
