/* Which addresses mean what: one sorted table of device memory, mappings and pinned host memory, and one of reserved
 * addresses. Readers hold the table for as long as they touch the memory, so that nothing is unmapped under a copy.  */
#pragma once

#include <stdbool.h>

#include "driver/sim_cuda.h"
#include "machine/machine.h"

enum range_kind {
	RANGE_DEVICE,  /* cuMemAlloc */
	RANGE_POOL,    /* cuMemAllocAsync */
	RANGE_MAPPED,  /* cuMemMap */
	RANGE_MANAGED, /* cuMemAllocManaged */
	RANGE_IPC,     /* cuIpcOpenMemHandle */
	RANGE_HOST,    /* cuMemHostAlloc */
	RANGE_REGISTERED, /* cuMemHostRegister */
	RANGE_RESERVED,   /* only in the other table */
};

struct range {
	uint64_t start, size;
	enum range_kind kind;
	int device;            /* ordinal */
	CUcontext context;     /* that it dies with; NULL: none */
	uint64_t id;           /* CU_POINTER_ATTRIBUTE_BUFFER_ID */
	bool on_device;        /* managed memory: charged to the GPU now */
	bool sync_memops, sync_memops_told;
	uint64_t charged;      /* bytes taken of the GPU for this range alone */
	uint64_t file_offset;  /* where in the memory file, for memory of our own */
	void *owner;           /* slab, pool, memory handle */
	uint8_t access[SIM_MAX_GPUS]; /* RANGE_MAPPED: CU_MEM_ACCESS_FLAGS by ordinal */
};

struct range_table;
extern struct range_table memory_ranges, reserved_ranges;

void ranges_read(void);  /* hold both tables for reading */
void ranges_write(void); /* and for writing */
void ranges_done(void);

/* The range with this address, or NULL; a table must be held. The pointer is good until it is released.  */
struct range *ranges_find(struct range_table *table, uint64_t address);
/* The first range that ends behind this address, or NULL.  */
struct range *ranges_from(struct range_table *table, uint64_t address);
/* Put a copy of `range` in, with a new id; false when memory is short. Held for writing.  */
bool ranges_add(struct range_table *table, const struct range *range);
/* An id that no memory of this process has had. Held for writing.  */
uint64_t ranges_new_id(void);
/* Take out the range that starts there. Held for writing.  */
bool ranges_remove(struct range_table *table, uint64_t start);

/* Whether a context's GPU may touch all of [address, address + size); the tables are held. Host memory only if pinned.  */
bool ranges_accessible(CUcontext context, uint64_t address, uint64_t size, bool write);
