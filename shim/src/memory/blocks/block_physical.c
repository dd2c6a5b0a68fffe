/* The physical memory of blocks: how it comes, goes, and which devices may reach it.  */
#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "driver/real_driver.h"
#include "memory/app_mappings/app_mappings.h"
#include "memory/blocks/block_internal.h"

/* Of larger handles the driver goes on cleaning memory that was just freed while it is already being filled: the first copy into
 * 32 GiB took 692 ms in handles of 1 GiB, 656 ms in such of 40 MiB and 621 ms in such of 32 MiB. But beside copies the other way
 * each handle takes 0.6 ms to become accessible, which 128 MiB can afford: 10 GiB came in at 34.8 GiB/s in handles of 32 MiB, at 47.5 in
 * such of 256 MiB (H200, driver 580).  */
#define PART_BYTES_MIN (32ull << 20)
#define PART_BYTES_MAX (128ull << 20)
#define PARTS_AT_LEAST 4

int block_cut_in_parts(struct block *block)
{
	size_t granularity = block->context->device->granularity;

	block->part_bytes = block->mapped / PARTS_AT_LEAST / PART_BYTES_MIN * PART_BYTES_MIN;
	if (block->part_bytes < PART_BYTES_MIN)
		block->part_bytes = PART_BYTES_MIN;
	if (block->part_bytes > PART_BYTES_MAX)
		block->part_bytes = PART_BYTES_MAX;
	if (block->mapped / block->part_bytes >= BLOCK_PARTS_MAX)
		block->part_bytes = (block->mapped / BLOCK_PARTS_MAX + granularity) / granularity * granularity;
	block->parts = (unsigned)((block->mapped + block->part_bytes - 1) / block->part_bytes);
	if (block->parts > 1)
		block->handles = calloc(block->parts, sizeof(*block->handles));
	return block->parts < 2 || block->handles ? 0 : -ENOMEM;
}

/* A mapping's block, and a small one, have one part.  */
unsigned block_parts(const struct block *block)
{
	return block->handles ? block->parts : 1;
}

size_t block_part_begins(const struct block *block, unsigned part)
{
	return part == block_parts(block) ? block->mapped : part * block->part_bytes;
}

static size_t bytes_of_part(const struct block *block, unsigned part)
{
	return block_part_begins(block, part + 1) - block_part_begins(block, part);
}

/* Release all parts but the first `keep`.  */
static void release(struct block *block, unsigned keep)
{
	/* Unmapped but not released would be a leak, not a loss: say so and go on.  */
	while (block->parts_created > keep) {
		unsigned i = --block->parts_created;

		if (driver.cuMemRelease(block_handles(block)[i]) != CUDA_SUCCESS)
			log_line("cuMemRelease failed for %zu bytes at %llx", bytes_of_part(block, i), block->address);
	}
}

/* Create parts until the first `parts` exist.  */
static CUresult create(struct block *block, unsigned parts)
{
	const struct device *device = block->context->device;
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal}};

	prop.allocFlags.gpuDirectRDMACapable = device->rdma;
	prop.allocFlags.usage = device->decompresses ? CU_MEM_CREATE_USAGE_HW_DECOMPRESS : 0;
	if (device->exportable)
		prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	if (block->mapping)
		prop = block->mapping->prop;
	while (block->parts_created < parts) {
		unsigned i = block->parts_created;
		CUresult result = driver.cuMemCreate(&block_handles(block)[i], bytes_of_part(block, i), &prop, 0);

		if (result != CUDA_SUCCESS)
			return result;
		block->parts_created++;
	}
	return CUDA_SUCCESS;
}

CUresult block_create(struct block *block)
{
	unsigned before = block->parts_created;
	CUresult result = create(block, block_parts(block));

	if (result != CUDA_SUCCESS)
		release(block, before);
	return result;
}

CUresult block_set_access(struct block *block, unsigned first)
{
	size_t before = block_part_begins(block, first);
	const struct device *device = block->context->device;
	CUmemAccessDesc access[33];
	size_t n = 0;

	access[n++] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal},
					CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	for (int peer = 0; peer < 32; peer++)
		if (device->peers & (1u << peer))
			access[n++] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, peer},
							CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	return driver.cuMemSetAccess(block->address + before, block_part_begins(block, block->parts_mapped) - before, access, n);
}

void block_take_access(struct block *block, uint32_t devices)
{
	size_t size = block_part_begins(block, block->parts_mapped);

	for (int peer = 0; peer < 32; peer++) {
		const CUmemAccessDesc none = {{CU_MEM_LOCATION_TYPE_DEVICE, peer}, CU_MEM_ACCESS_FLAGS_PROT_NONE};

		if (devices & (1u << peer) && driver.cuMemSetAccess(block->address, size, &none, 1) != CUDA_SUCCESS)
			log_line("device %d keeps access to %llx", peer, block->address);
	}
}

/* Map all parts that exist, and make them accessible.  */
static CUresult map(struct block *block)
{
	unsigned before = block->access_is_due ? 0 : block->parts_mapped;
	bool is_new = block->parts_created > before;
	CUresult result;

	while (block->parts_mapped < block->parts_created) {
		unsigned i = block->parts_mapped;

		result = driver.cuMemMap(block->address + block_part_begins(block, i), bytes_of_part(block, i), 0,
					 block_handles(block)[i], 0);
		if (result != CUDA_SUCCESS)
			return result;
		block->parts_mapped++;
		block->access_is_due = true;
	}
	result = block_set_access(block, is_new ? before : 0);
	block->access_is_due = result != CUDA_SUCCESS;
	return result;
}

CUresult block_map(struct block *block)
{
	return block->mapping ? mapping_map(block->mapping) : map(block);
}

size_t block_usable_bytes(const struct block *block)
{
	unsigned parts = block->access_is_due ? block->parts_left : block->parts_mapped;

	return block->resident ? block->mapped : block_part_begins(block, parts);
}

CUresult block_grow(struct block *block)
{
	CUresult result;

	/* What exists already is what an earlier attempt could not map, or unmap.  */
	result = create(block, block->access_is_due ? block->parts_created : block->mapping ? 1 : block->parts_mapped + 1);
	return result == CUDA_SUCCESS ? block_map(block) : result;
}

static CUresult unmap(struct block *block, unsigned keep)
{
	size_t first = block_part_begins(block, keep);
	CUresult result = CUDA_SUCCESS;

	if (block->parts_mapped > keep)
		result = driver.cuMemUnmap(block->address + first, block_part_begins(block, block->parts_mapped) - first);
	if (result != CUDA_SUCCESS)
		return result;
	if (block->parts_mapped > keep)
		block->parts_mapped = keep;
	block->access_is_due = false;
	return CUDA_SUCCESS;
}

CUresult block_unmap_parts(struct block *block)
{
	return unmap(block, 0);
}

CUresult block_keep(struct block *block, unsigned parts)
{
	CUresult result = block->mapping && parts == 0 ? mapping_unmap_all(block->mapping) : unmap(block, parts);

	if (result != CUDA_SUCCESS)
		return result;
	release(block, parts);
	block_set_resident(block, false);
	return CUDA_SUCCESS;
}

CUresult block_unmap(struct block *block)
{
	return block_keep(block, 0);
}
