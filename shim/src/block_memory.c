/* The physical memory of blocks: how it comes, goes, and who may reach it.  */
#include "block_table.h"
#include "driver.h"
#include "log.h"
#include "mappings.h"

/* Whether legacy IPC of backed memory is offered: it has to be decided before anybody asks.  */
#define EXPORTABLE_BLOCKS true

CUresult block_create(struct block *block)
{
	const struct device *device = block->context->device;
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal}};

	prop.allocFlags.gpuDirectRDMACapable = device->rdma;
	if (EXPORTABLE_BLOCKS && device->exportable)
		prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	if (block->mapping)
		prop = block->mapping->prop;
	return driver.cuMemCreate(&block->handle, block->mapped, &prop, 0);
}

CUresult block_set_access(struct block *block)
{
	const struct device *device = block->context->device;
	CUmemAccessDesc access[33];
	size_t n = 0;

	access[n++] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal},
					CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	for (int peer = 0; peer < 32; peer++)
		if (device->peers & (1u << peer))
			access[n++] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, peer},
							CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	return driver.cuMemSetAccess(block->address, block->mapped, access, n);
}

void block_take_access(struct block *block, uint32_t devices)
{
	for (int peer = 0; peer < 32; peer++) {
		const CUmemAccessDesc none = {{CU_MEM_LOCATION_TYPE_DEVICE, peer}, CU_MEM_ACCESS_FLAGS_PROT_NONE};

		if (devices & (1u << peer) && driver.cuMemSetAccess(block->address, block->mapped, &none, 1) != CUDA_SUCCESS)
			log_line("device %d keeps access to %llx", peer, block->address);
	}
}

CUresult block_map(struct block *block)
{
	CUresult result;

	if (block->mapping)
		return mapping_map(block->mapping);
	result = block->in_place ? CUDA_SUCCESS
				 : driver.cuMemMap(block->address, block->mapped, 0, block->handle, 0);
	if (result != CUDA_SUCCESS)
		return result;
	block->in_place = true;
	return block_set_access(block);
}

static CUresult unmap(struct block *block)
{
	CUresult result = block->in_place ? driver.cuMemUnmap(block->address, block->mapped) : CUDA_SUCCESS;

	block->in_place = block->in_place && result != CUDA_SUCCESS;
	return result;
}

CUresult block_unmap(struct block *block)
{
	CUresult result = block->mapping ? mapping_unmap_all(block->mapping) : unmap(block);

	if (result != CUDA_SUCCESS)
		return result;
	/* Unmapped but not released would be a leak, not a loss: say so and go on.  */
	if (driver.cuMemRelease(block->handle) != CUDA_SUCCESS)
		log_line("cuMemRelease failed for %zu bytes at %llx", block->mapped, block->address);
	block_set_resident(block, false);
	return CUDA_SUCCESS;
}
