/* Handles of physical memory, for vmm.c, vmm_share.c and questions about a mapping.  */
#pragma once

#include "driver/objects.h"
#include "memory/ranges.h"

/* Owner of a RANGE_MAPPED; changes under the ranges' write lock.  */
struct memory_handle {
	struct object object;
	unsigned references; /* of the program */
	unsigned mappings;
	uint64_t size, offset;
	uint64_t id; /* CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID of what is mapped of it; 0: not mapped yet */
	int fd; /* own file of a shareable handle; -1: in the process's file */
	bool imported; /* another process pays for it */
	CUmemAllocationProp properties;
};

/* The handle, if it is one.  */
struct memory_handle *vmm_handle(CUmemGenericAllocationHandle handle);
/* Give it back if neither the program nor a mapping has it. Held for writing, as in all of these.  */
void vmm_drop_if_unused(struct memory_handle *handle);

/* Whether all of it is mapped memory that nothing has written to or read: it is zero, and stays without memory of the
 * host for as long as it is not touched. The tables are held.  */
bool vmm_is_blank(uint64_t address, uint64_t size);
