/* Hooks on questions about pointers. Backed memory answers as cuMemAlloc's would, parked or not: a small block that
 * the driver did allocate (the context's witness) is asked instead, and what depends on the address is put right.  */
#include <stdint.h>
#include <string.h>

#include "driver/hook.h"
#include "driver/real_driver.h"
#include "gate/gate.h"
#include "memory/app_mappings/app_mappings.h"
#include "memory/blocks/block.h"
#include "state/shim_state.h"

typedef CUresult (*get_attribute_fn)(void *, int, CUdeviceptr);

/* Find a block at `address` about which the driver must not be asked: a backed one, or the application's own that is parked.
 * The driver has other memory there, or none.  */
static bool find_behind(CUdeviceptr address, struct block *block)
{
	return block_find(address, block) || (mapping_find(address, block) && !block->resident);
}

/* Find a backed block whose witness can be asked. Else *block is the application's own that is resident, or nothing.  */
static bool backed(CUdeviceptr address, struct block *block)
{
	*block = (struct block){0};
	return shim_is_on() && find_behind(address, block) && block->context->witness;
}

/* Answer with the block's own ids: the driver's are those of the physical memory that is there now, or of the witness.  */
static void put_ids_right(void *data, int attribute, const struct block *block)
{
	if (attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID)
		memcpy(data, &block->buffer_id, sizeof(block->buffer_id));
	else if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID)
		memcpy(data, &block->id, sizeof(block->id));
}

/* Replace the witness's answer where it speaks of the witness's own address, size or capability.  */
static void put_right(void *data, int attribute, CUdeviceptr address, const struct block *block)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		if (block->mapping) /* of cuMemCreate: no context's */
			memset(data, 0, sizeof(CUcontext));
		break;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		memcpy(data, &(int){!block->sync_memops_off}, sizeof(int)); /* set unless cleared, as on an H200 */
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		memcpy(data, &address, sizeof(address));
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		memcpy(data, &block->address, sizeof(block->address));
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		memcpy(data, &block->size, sizeof(block->size));
		break;
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		memcpy(data, &block->mapped, sizeof(block->mapped));
		break;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(unsigned char *)data = block->context->device->exportable && !block->imported && !block->mapping;
		break;
	case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		/* Without an engine a block of ours is what its witness is: an H200 says so of all cuMemAlloc memory.  */
		if (block->mapping || block->decompresses)
			*(unsigned char *)data = block->decompresses;
		break;
	default:
		put_ids_right(data, attribute, block);
	}
}

static CUresult answer(get_attribute_fn get, void *data, int attribute, CUdeviceptr address, const struct block *block)
{
	CUresult result = get(data, attribute, block->context->witness);

	if (result == CUDA_SUCCESS && data)
		put_right(data, attribute, address, block);
	return result;
}

static CUresult on_cuPointerGetAttribute(void *real, void *data, int attribute, CUdeviceptr address)
{
	struct block block;
	CUresult result;

	if (backed(address, &block))
		return answer((get_attribute_fn)real, data, attribute, address, &block);
	result = ((get_attribute_fn)real)(data, attribute, address);
	if (result == CUDA_SUCCESS && data && block.mapping)
		put_ids_right(data, attribute, &block);
	return result;
}
HOOK(cuPointerGetAttribute, (void *data, int attribute, CUdeviceptr address), data, attribute, address)

static CUresult on_cuPointerGetAttributes(void *real, unsigned int count, int *attributes, void **data,
					  CUdeviceptr address)
{
	CUresult (*get)(unsigned int, int *, void **, CUdeviceptr) =
		(CUresult(*)(unsigned int, int *, void **, CUdeviceptr))real;
	struct block block;
	bool from_witness = backed(address, &block);
	CUresult result = get(count, attributes, data, from_witness ? (CUdeviceptr)block.context->witness : address);

	for (unsigned int i = 0; result == CUDA_SUCCESS && i < count; i++)
		if (data[i] && from_witness)
			put_right(data[i], attributes[i], address, &block);
		else if (data[i] && block.mapping)
			put_ids_right(data[i], attributes[i], &block);
	return result;
}
HOOK(cuPointerGetAttributes, (unsigned int count, int *attributes, void **data, CUdeviceptr address), count,
     attributes, data, address)

/* The driver refuses SYNC_MEMOPS for mapped memory, where cuMemAlloc's can have it: the promise is kept in call_thunks.c. A
 * parked block of the application's own cannot be told anything, so that waits for the GPU.  */
static CUresult on_cuPointerSetAttribute(void *real, const void *value, int attribute, CUdeviceptr address)
{
	GATE_PASS(pass);
	CUresult result = gate_enter(&pass, AFFINODE_CLASS_ALLOC);

	if (result != CUDA_SUCCESS)
		return result;
	if (value && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && shim_is_on() &&
	    block_set_sync_memops(address, *(const unsigned int *)value != 0))
		return CUDA_SUCCESS;
	if (shim_is_on() && block_find(address, &(struct block){0}))
		return CUDA_ERROR_INVALID_VALUE; /* the driver's word for cuMemAlloc's memory */
	return ((CUresult(*)(const void *, int, CUdeviceptr))real)(value, attribute, address);
}
HOOK(cuPointerSetAttribute, (const void *value, int attribute, CUdeviceptr address), value, attribute, address)

static CUresult on_cuMemGetAddressRange(void *real, CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
	struct block block;

	if (!find_behind(address, &block))
		return ((CUresult(*)(CUdeviceptr *, size_t *, CUdeviceptr))real)(base, size, address);
	if (base)
		*base = block.address;
	if (size)
		*size = block.size;
	return CUDA_SUCCESS;
}
HOOK(cuMemGetAddressRange, (CUdeviceptr * base, size_t *size, CUdeviceptr address), base, size, address)
