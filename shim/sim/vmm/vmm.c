/* Virtual memory management: handles of physical memory, reserved addresses, mappings and their access rights.
 *
 * A handle lives until it is released and mapped nowhere. Memory is reachable from a GPU only after cuMemSetAccess for
 * that GPU: a mapping alone, or peer access, is not enough.  */
#include "vmm/vmm.h"

#include <unistd.h>

#include "driver/api.h"
#include "driver/device.h"
#include "driver/objects.h"
#include "memory/memfile.h"

struct memory_handle *vmm_handle(CUmemGenericAllocationHandle handle)
{
	void *pointer = (void *)(uintptr_t)handle;

	return object_is(pointer, OBJECT_MEMORY) ? pointer : NULL;
}

void vmm_drop_if_unused(struct memory_handle *handle)
{
	if (handle->references || handle->mappings)
		return;
	if (handle->fd >= 0)
		close(handle->fd);
	else
		memfile_drop(handle->offset, handle->size);
	if (!handle->imported)
		machine_refund(device_gpu(handle->properties.location.id), handle->size);
	object_free(OBJECT_MEMORY, handle);
}

static CUresult check_properties(const CUmemAllocationProp *properties)
{
	if (!properties || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return properties->location.type > 1 && properties->location.type < 5 ? CUDA_ERROR_NOT_SUPPORTED
										      : CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(properties->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	if (properties->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties, int option)
{
	CUresult result;

	ENTER("cuMemGetAllocationGranularity");
	if (!granularity || option < 0 || option > 1)
		return CUDA_ERROR_INVALID_VALUE;
	result = check_properties(properties);
	if (result == CUDA_SUCCESS)
		*granularity = SIM_GRANULARITY;
	return result;
}

static CUresult back(struct memory_handle *handle)
{
	unsigned gpu = device_gpu(handle->properties.location.id);

	if (!machine_charge(gpu, handle->size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	handle->offset = memfile_take(handle->size);
	if (handle->offset == MEMFILE_NONE) {
		machine_refund(gpu, handle->size);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemCreate(CUmemGenericAllocationHandle *made, size_t size, const CUmemAllocationProp *properties,
			     unsigned long long flags)
{
	struct memory_handle *handle;
	CUresult result;

	ENTER("cuMemCreate");
	if (!made || !size || size % SIM_GRANULARITY || flags)
		return CUDA_ERROR_INVALID_VALUE;
	result = check_properties(properties);
	if (result != CUDA_SUCCESS)
		return result;
	handle = object_new(OBJECT_MEMORY, sizeof(*handle));
	if (!handle)
		return CUDA_ERROR_OUT_OF_MEMORY;
	handle->references = 1;
	handle->size = size;
	handle->fd = -1;
	handle->offset = MEMFILE_NONE;
	handle->properties = *properties;
	result = back(handle);
	if (result != CUDA_SUCCESS)
		object_free(OBJECT_MEMORY, handle);
	else
		*made = (uintptr_t)handle;
	return result;
}

SIM_API CUresult cuMemRelease(CUmemGenericAllocationHandle given)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct memory_handle *handle;

	ENTER("cuMemRelease");
	ranges_write();
	handle = vmm_handle(given);
	if (handle && handle->references) {
		handle->references--;
		vmm_drop_if_unused(handle);
		result = CUDA_SUCCESS;
	}
	ranges_done();
	return result;
}

SIM_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *given, void *address)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct range *range;

	ENTER("cuMemRetainAllocationHandle");
	ranges_write();
	range = ranges_find(&memory_ranges, (uintptr_t)address);
	if (given && range && range->kind == RANGE_MAPPED) {
		struct memory_handle *handle = range->owner;

		handle->references++;
		*given = (uintptr_t)handle;
		result = CUDA_SUCCESS;
	}
	ranges_done();
	return result;
}

SIM_API CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr hint,
				     unsigned long long flags)
{
	struct range range = {.size = size, .kind = RANGE_RESERVED};
	bool added = false;

	ENTER("cuMemAddressReserve");
	if (!address || !size || size % SIM_GRANULARITY || (alignment & (alignment - 1)) || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (alignment < SIM_GRANULARITY)
		alignment = SIM_GRANULARITY;
	range.start = address_reserve(size, alignment, hint);
	if (range.start) {
		ranges_write();
		added = ranges_add(&reserved_ranges, &range);
		ranges_done();
		if (!added)
			address_release(range.start, size);
	}
	if (added)
		*address = range.start;
	return added ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static bool overlaps_mapping(uint64_t start, uint64_t size)
{
	struct range *range = ranges_from(&memory_ranges, start);

	return range && range->start < start + size;
}

SIM_API CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct range *range;

	ENTER("cuMemAddressFree");
	ranges_write();
	range = ranges_find(&reserved_ranges, address);
	if (range && range->start == address && range->size == size && !overlaps_mapping(address, size)) {
		ranges_remove(&reserved_ranges, address);
		address_release(address, size);
		result = CUDA_SUCCESS;
	}
	ranges_done();
	return result;
}

SIM_API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle given,
			  unsigned long long flags)
{
	struct range range = {.start = address, .size = size, .kind = RANGE_MAPPED, .on_device = true};
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct memory_handle *handle;
	struct range *reserved;

	ENTER("cuMemMap");
	if (!size || size % SIM_GRANULARITY || address % SIM_GRANULARITY || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (offset)
		return CUDA_ERROR_NOT_SUPPORTED;
	ranges_write();
	handle = vmm_handle(given);
	reserved = ranges_find(&reserved_ranges, address);
	if (!handle || (!handle->references && !handle->mappings) || size > handle->size || !reserved ||
	    address + size > reserved->start + reserved->size || overlaps_mapping(address, size))
		goto out;
	if (size < handle->size) {
		result = CUDA_ERROR_NOT_SUPPORTED; /* only whole handles (driver 580) */
		goto out;
	}
	range.owner = handle;
	range.device = handle->properties.location.id;
	range.file_offset = handle->fd >= 0 ? 0 : handle->offset;
	result = CUDA_ERROR_OUT_OF_MEMORY;
	if (address_map(address, size, handle->fd >= 0 ? handle->fd : memfile_fd(), range.file_offset))
		goto out;
	if (!ranges_add(&memory_ranges, &range)) {
		address_unmap(address, size);
		goto out;
	}
	handle->mappings++;
	if (!handle->id)
		handle->id = ranges_new_id();
	result = CUDA_SUCCESS;
out:
	ranges_done();
	return result;
}

bool vmm_is_blank(uint64_t address, uint64_t size)
{
	for (uint64_t end = address + size, next; address < end; address = next) {
		const struct range *range = ranges_find(&memory_ranges, address);
		const struct memory_handle *handle;

		if (!range || range->kind != RANGE_MAPPED)
			return false;
		handle = range->owner;
		next = range->start + range->size < end ? range->start + range->size : end;
		if (!file_is_blank(handle->fd >= 0 ? handle->fd : memfile_fd(), range->file_offset + address - range->start,
				   next - address))
			return false;
	}
	return true;
}

/* Whether [address, address + size) begins and ends with whole mappings; `full`: and has no hole.  */
static bool covered(uint64_t address, uint64_t size, bool full)
{
	uint64_t end = address + size, at = address;
	struct range *range;

	while ((range = ranges_from(&memory_ranges, at)) && range->start < end) {
		if (range->kind != RANGE_MAPPED || range->start < at || range->start + range->size > end ||
		    (full && range->start != at))
			return false;
		at = range->start + range->size;
	}
	return !full || at == end;
}

/* Where nothing is mapped there is nothing to do, and that is no error (driver 580).  */
SIM_API CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct range *range;

	ENTER("cuMemUnmap");
	if (!size || size % SIM_GRANULARITY)
		return CUDA_ERROR_INVALID_VALUE;
	ranges_write();
	if (ranges_find(&reserved_ranges, address) && covered(address, size, false)) {
		while ((range = ranges_from(&memory_ranges, address)) && range->start < address + size) {
			struct memory_handle *handle = range->owner;

			address_unmap(range->start, range->size);
			ranges_remove(&memory_ranges, range->start);
			handle->mappings--;
			vmm_drop_if_unused(handle);
		}
		result = CUDA_SUCCESS;
	}
	ranges_done();
	return result;
}

static CUresult check_access(const CUmemAccessDesc *access, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
			return access[i].location.type == CU_MEM_LOCATION_TYPE_HOST ? CUDA_ERROR_NOT_SUPPORTED
										    : CUDA_ERROR_INVALID_VALUE;
		if (!device_valid(access[i].location.id))
			return CUDA_ERROR_INVALID_DEVICE;
		if (access[i].flags != 0 && access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
		    access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count)
{
	CUresult result;

	ENTER("cuMemSetAccess");
	if (!size || !access || !count || size % SIM_GRANULARITY || address % SIM_GRANULARITY)
		return CUDA_ERROR_INVALID_VALUE;
	result = check_access(access, count);
	if (result != CUDA_SUCCESS)
		return result;
	ranges_write();
	if (covered(address, size, true)) {
		for (uint64_t at = address; at < address + size;) {
			struct range *range = ranges_find(&memory_ranges, at);

			for (size_t i = 0; i < count; i++)
				range->access[access[i].location.id] = (uint8_t)access[i].flags;
			at += range->size;
		}
	} else {
		result = CUDA_ERROR_INVALID_VALUE;
	}
	ranges_done();
	return result;
}

SIM_API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct range *range;

	ENTER("cuMemGetAccess");
	if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE || !device_valid(location->id))
		return CUDA_ERROR_INVALID_VALUE;
	ranges_read();
	range = ranges_find(&memory_ranges, address);
	if (range) {
		*flags = range->kind == RANGE_MAPPED ? range->access[location->id] : 0;
		result = CUDA_SUCCESS;
	}
	ranges_done();
	return result;
}
