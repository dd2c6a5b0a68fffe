/* Memory that the application creates and maps itself (cuMemCreate, cuMemMap): PyTorch's expandable segments, JAX.
 *
 * The application gets a handle of ours, which stays its own while the driver's handle behind it goes at park and
 * another comes at resume. What was exported or bound to a multicast object cannot be replaced and stays on the
 * GPU.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "driver/cuda_types.h"
#include "memory/blocks/block.h"

/* One place where an application mapped an allocation of its own, and which devices may reach it there.  */
struct alias {
	CUdeviceptr address;
	size_t size;
	uint64_t id;   /* CU_POINTER_ATTRIBUTE_BUFFER_ID */
	bool in_place; /* the physical memory is mapped here; the mover's to say, but for what the application does */
	bool ours; /* reserved by us, to keep contents that the application has unmapped but may map again */
	unsigned access_count;
	CUmemAccessDesc access[8];
	struct mapping *mapping;
	struct alias *next; /* of the same mapping */
};

struct mapping {
	struct block block; /* what the mover moves; its address is an alias that it can copy through, 0: there is none */
	CUmemAllocationProp prop;
	CUmemGenericAllocationHandle handle; /* what the application holds */
	uint32_t references;                 /* the application's own: one for cuMemCreate, one a cuMemRetain… */
	struct alias *aliases;
};

/* Adopt what the driver just created; the application's handle, or the driver's own if it cannot be adopted.  */
CUmemGenericAllocationHandle mapping_adopt(CUmemGenericAllocationHandle real, size_t size,
					   const CUmemAllocationProp *prop);

/* The driver's handle now behind the application's, itself if it is not ours. `share`: it stays from now on.  */
CUmemGenericAllocationHandle mapping_real_handle(CUmemGenericAllocationHandle handle, bool share);
bool mapping_properties(CUmemGenericAllocationHandle handle, CUmemAllocationProp *prop);

/* From now on the mappings in this range stay where they are.  */
void mappings_keep_on_gpu(CUdeviceptr address, size_t size);

/* After the driver did so, inside the gate.  */
void mapping_mapped(CUmemGenericAllocationHandle handle, CUdeviceptr address, size_t size);
void mapping_set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count);

/* The application's handle for the allocation mapped at `address`, with a reference more; 0: not ours.  */
CUmemGenericAllocationHandle mapping_retain(CUdeviceptr address);

/* Give up a reference, or the aliases in a range. False: not ours, or not all of it: let the driver do (the rest of) it.
 * The caller is inside the gate or holds the mover. A range of parked aliases alone has nothing mapped behind it.  */
bool mapping_release(CUmemGenericAllocationHandle handle, CUresult *result);
bool mapping_unmap(CUdeviceptr address, size_t size, CUresult *result);

/* What is known of the alias that contains `address`, parked if it is not `resident`; false: not ours.  */
bool mapping_find(CUdeviceptr address, struct block *found);

/* Answer for a parked alias: its access. False: not parked, or not ours.  */
bool mapping_parked_access(CUdeviceptr address, const CUmemLocation *location, unsigned long long *flags);

/* For block_table.c: map, unmap at every alias; list what can move; count bytes.  */
CUresult mapping_map(struct mapping *mapping);
CUresult mapping_unmap_all(struct mapping *mapping);
CUresult alias_unmap(struct alias *alias);
/* Memory of cuMemCreate outlives the context it was made in: the mover copies it in another one of the device.  */
void mappings_choose_contexts(void);
size_t mappings_list(struct block **list, size_t room);
size_t mappings_count(void);
void mappings_see_retained_copies(void (*see)(struct copy **copy, void *what), void *what);
void mappings_sum(struct block_bytes bytes[AFFINODE_MAX_GPUS], uint64_t shared[AFFINODE_MAX_GPUS],
		  uint64_t unmovable[AFFINODE_MAX_GPUS]);
size_t mappings_resident_bytes(void);
bool mappings_are_in(const struct context *context);
