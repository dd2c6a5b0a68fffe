/* The physical memory of blocks: how it comes, goes, and which devices may reach it.  */
#include <stdlib.h>

#include "base/log.h"
#include "driver/real_driver.h"
#include "memory/app_mappings.h"
#include "memory/backed_internal.h"

/* Whether legacy IPC of backed memory is offered: it has to be decided before the first question.  */
#define EXPORTABLE_BLOCKS true

/* Of handles larger than this the driver goes on cleaning the memory while it is already being filled: the first
 * copy into 32 GiB took 692 ms in handles of 1 GiB, 656 ms in such of 40 MiB and 621 ms in such of 32 MiB (H200,
 * driver 580).  */
#define PART_BYTES (32ull << 20)

unsigned block_cut(size_t mapped, size_t granularity, size_t *part_bytes)
{
	size_t part = PART_BYTES;

	if (mapped / part >= BLOCK_PARTS_MAX)
		part = (mapped / BLOCK_PARTS_MAX + granularity) / granularity * granularity;
	*part_bytes = part;
	return (unsigned)((mapped + part - 1) / part);
}

/* Once in a block's life; where memory for the handles is short it has one part.  */
static void cut(struct block *block)
{
	unsigned parts = block_cut(block->mapped, block->context->device->granularity, &block->part_bytes);

	if (block->mapping || block->handles || parts < 2)
		return;
	block->handles = calloc(parts, sizeof(*block->handles));
	block->parts = parts;
}

static size_t bytes_of_part(const struct block *block, unsigned part)
{
	size_t before = part * block->part_bytes;

	if (!block->handles)
		return block->mapped;
	return block->mapped - before < block->part_bytes ? block->mapped - before : block->part_bytes;
}

static void release(struct block *block, unsigned parts)
{
	/* Unmapped but not released would be a leak, not a loss: say so and go on.  */
	for (unsigned i = 0; i < parts; i++)
		if (driver.cuMemRelease(block_handles(block)[i]) != CUDA_SUCCESS)
			log_line("cuMemRelease failed for %zu bytes at %llx", bytes_of_part(block, i), block->address);
}

CUresult block_create(struct block *block)
{
	const struct device *device = block->context->device;
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal}};

	prop.allocFlags.gpuDirectRDMACapable = device->rdma;
	prop.allocFlags.usage = device->decompresses ? CU_MEM_CREATE_USAGE_HW_DECOMPRESS : 0;
	if (EXPORTABLE_BLOCKS && device->exportable)
		prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	if (block->mapping)
		prop = block->mapping->prop;
	cut(block);
	for (unsigned i = 0; i < block_parts(block); i++) {
		CUresult result = driver.cuMemCreate(&block_handles(block)[i], bytes_of_part(block, i), &prop, 0);

		if (result == CUDA_SUCCESS)
			continue;
		release(block, i);
		return result;
	}
	return CUDA_SUCCESS;
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
	if (block->mapping)
		return mapping_map(block->mapping);
	while (block->parts_mapped < block_parts(block)) {
		unsigned i = block->parts_mapped;
		CUresult result = driver.cuMemMap(block->address + i * block->part_bytes, bytes_of_part(block, i), 0,
						  block_handles(block)[i], 0);

		if (result != CUDA_SUCCESS)
			return result;
		block->parts_mapped++;
	}
	return block_set_access(block);
}

CUresult block_unmap_parts(struct block *block)
{
	bool whole = block->parts_mapped == block_parts(block);
	CUresult result = CUDA_SUCCESS;

	if (block->parts_mapped)
		result = driver.cuMemUnmap(block->address,
					   whole ? block->mapped : block->parts_mapped * block->part_bytes);
	if (result == CUDA_SUCCESS)
		block->parts_mapped = 0;
	return result;
}

CUresult block_unmap(struct block *block)
{
	CUresult result = block->mapping ? mapping_unmap_all(block->mapping) : block_unmap_parts(block);

	if (result != CUDA_SUCCESS)
		return result;
	release(block, block_parts(block));
	block_set_resident(block, false);
	return CUDA_SUCCESS;
}
