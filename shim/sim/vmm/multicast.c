/* Multicast objects: what is written to their mapping is written to the memory that was bound, on each device. Here they have
 * one binding, of whole memory, made before they are mapped. And binding memory to a logical endpoint, of which only that is
 * simulated that the memory has to be there.  */
#include "driver/api.h"
#include "driver/device.h"
#include "driver/objects.h"
#include "vmm/vmm.h"

typedef struct {
	unsigned int numDevices;
	size_t size;
	unsigned long long handleTypes, flags;
} CUmulticastObjectProp;

struct multicast {
	struct object object;
	uint64_t size;
	struct memory_handle *bound; /* it stays while it is */
};

static struct multicast *multicast_of(CUmemGenericAllocationHandle given)
{
	void *pointer = (void *)(uintptr_t)given;

	return object_is(pointer, OBJECT_MULTICAST) ? pointer : NULL;
}

struct memory_handle *multicast_bound(CUmemGenericAllocationHandle given)
{
	struct multicast *multicast = multicast_of(given);

	return multicast ? multicast->bound : NULL;
}

static void unbind(struct multicast *multicast)
{
	if (!multicast->bound)
		return;
	multicast->bound->mappings--;
	vmm_drop_if_unused(multicast->bound);
	multicast->bound = NULL;
}

bool multicast_release(CUmemGenericAllocationHandle given)
{
	struct multicast *multicast = multicast_of(given);

	if (!multicast)
		return false;
	unbind(multicast);
	object_free(OBJECT_MULTICAST, multicast);
	return true;
}

SIM_API CUresult cuMulticastCreate(CUmemGenericAllocationHandle *made, const CUmulticastObjectProp *prop)
{
	struct multicast *multicast;

	ENTER("cuMulticastCreate");
	if (!made || !prop || !prop->numDevices || !prop->size || prop->size % SIM_GRANULARITY)
		return CUDA_ERROR_INVALID_VALUE;
	multicast = object_new(OBJECT_MULTICAST, sizeof(*multicast));
	if (!multicast)
		return CUDA_ERROR_OUT_OF_MEMORY;
	multicast->size = prop->size;
	*made = (uintptr_t)multicast;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle given, CUdevice device)
{
	ENTER("cuMulticastAddDevice");
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	return multicast_of(given) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The tables are held for writing.  */
static CUresult bind(CUmemGenericAllocationHandle given, size_t offset, struct memory_handle *handle, size_t from, size_t size)
{
	struct multicast *multicast = multicast_of(given);

	if (!multicast || !handle || multicast->bound || size != multicast->size || size != handle->size)
		return CUDA_ERROR_INVALID_VALUE;
	if (offset || from)
		return CUDA_ERROR_NOT_SUPPORTED;
	multicast->bound = handle;
	handle->mappings++;
	return CUDA_SUCCESS;
}

static CUresult bind_memory(CUmemGenericAllocationHandle given, size_t offset, CUmemGenericAllocationHandle memory, size_t from,
			    size_t size)
{
	CUresult result;

	ENTER("cuMulticastBindMem");
	ranges_write();
	result = bind(given, offset, vmm_handle(memory), from, size);
	ranges_done();
	return result;
}

static struct memory_handle *mapped_at(CUdeviceptr address, size_t size)
{
	struct range *range = ranges_find(&memory_ranges, address);

	return range && range->kind == RANGE_MAPPED && range->start == address && range->size == size ? range->owner : NULL;
}

static CUresult bind_address(CUmemGenericAllocationHandle given, size_t offset, CUdeviceptr address, size_t size)
{
	CUresult result;

	ENTER("cuMulticastBindAddr");
	ranges_write();
	result = bind(given, offset, mapped_at(address, size), 0, size);
	ranges_done();
	return result;
}

SIM_API CUresult cuMulticastBindMem(CUmemGenericAllocationHandle given, size_t offset, CUmemGenericAllocationHandle memory,
				    size_t from, size_t size, unsigned long long flags)
{
	return flags ? CUDA_ERROR_INVALID_VALUE : bind_memory(given, offset, memory, from, size);
}

SIM_API CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle given, CUdevice device, size_t offset,
				       CUmemGenericAllocationHandle memory, size_t from, size_t size,
				       unsigned long long flags)
{
	return flags || !device_valid(device) ? CUDA_ERROR_INVALID_VALUE : bind_memory(given, offset, memory, from, size);
}

SIM_API CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle given, size_t offset, CUdeviceptr address, size_t size,
				     unsigned long long flags)
{
	return flags ? CUDA_ERROR_INVALID_VALUE : bind_address(given, offset, address, size);
}

SIM_API CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle given, CUdevice device, size_t offset,
					CUdeviceptr address, size_t size, unsigned long long flags)
{
	return flags || !device_valid(device) ? CUDA_ERROR_INVALID_VALUE : bind_address(given, offset, address, size);
}

SIM_API CUresult cuLogicalEndpointBindAddr(unsigned int endpoint, CUdevice device, size_t offset, void *address, size_t size,
					   unsigned long long flags)
{
	bool there;

	ENTER("cuLogicalEndpointBindAddr");
	(void)endpoint, (void)offset;
	ranges_read();
	there = ranges_find(&memory_ranges, (uintptr_t)address) && ranges_find(&memory_ranges, (uintptr_t)address + size - 1);
	ranges_done();
	return there && device_valid(device) && !flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuLogicalEndpointBindMem(unsigned int endpoint, CUdevice device, size_t offset,
					  CUmemGenericAllocationHandle memory, size_t from, size_t size,
					  unsigned long long flags)
{
	struct memory_handle *handle;

	ENTER("cuLogicalEndpointBindMem");
	(void)endpoint, (void)offset;
	ranges_read();
	handle = vmm_handle(memory);
	ranges_done();
	return handle && from + size <= handle->size && device_valid(device) && !flags ? CUDA_SUCCESS
										       : CUDA_ERROR_INVALID_VALUE;
}
