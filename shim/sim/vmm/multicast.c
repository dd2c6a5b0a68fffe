/* Binding memory to multicast objects and logical endpoints: only that the memory has to be there is simulated.  */
#include "driver/api.h"
#include "driver/device.h"
#include "vmm/vmm.h"

static CUresult bind_memory(const char *called, CUmemGenericAllocationHandle memory, size_t from, size_t size)
{
	struct memory_handle *handle;

	ENTER(called);
	ranges_read();
	handle = vmm_handle(memory);
	ranges_done();
	return handle && from + size <= handle->size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult bind_address(const char *called, CUdeviceptr address, size_t size)
{
	bool there;

	ENTER(called);
	ranges_read();
	there = ranges_find(&memory_ranges, address) && ranges_find(&memory_ranges, address + size - 1);
	ranges_done();
	return there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t offset, CUmemGenericAllocationHandle memory,
				    size_t from, size_t size, unsigned long long flags)
{
	(void)object, (void)offset, (void)flags;
	return bind_memory("cuMulticastBindMem", memory, from, size);
}

SIM_API CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
				       CUmemGenericAllocationHandle memory, size_t from, size_t size,
				       unsigned long long flags)
{
	(void)object, (void)device, (void)offset, (void)flags;
	return bind_memory("cuMulticastBindMem", memory, from, size);
}

SIM_API CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr address, size_t size,
				     unsigned long long flags)
{
	(void)object, (void)offset, (void)flags;
	return bind_address("cuMulticastBindAddr", address, size);
}

SIM_API CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
					CUdeviceptr address, size_t size, unsigned long long flags)
{
	(void)object, (void)device, (void)offset, (void)flags;
	return bind_address("cuMulticastBindAddr", address, size);
}

SIM_API CUresult cuLogicalEndpointBindAddr(unsigned int endpoint, CUdevice device, size_t offset, void *address, size_t size,
					   unsigned long long flags)
{
	(void)endpoint, (void)device, (void)offset, (void)flags;
	return bind_address("cuLogicalEndpointBindAddr", (uintptr_t)address, size);
}

SIM_API CUresult cuLogicalEndpointBindMem(unsigned int endpoint, CUdevice device, size_t offset,
					  CUmemGenericAllocationHandle memory, size_t from, size_t size,
					  unsigned long long flags)
{
	(void)endpoint, (void)device, (void)offset, (void)flags;
	return bind_memory("cuLogicalEndpointBindMem", memory, from, size);
}
