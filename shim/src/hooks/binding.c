/* Hooks on binding memory to objects by which others write to it, on this GPU or another: multicast objects, logical endpoints,
 * handles for devices such as network cards. The physical memory is bound, so it has to stay from then on.  */
#include "hooks/gated_hook.h"
#include "memory/app_mappings/app_mappings.h"
#include "memory/blocks/block.h"

/* Keep memory on the GPU that was bound by its address.  */
static CUresult keep(CUresult result, CUdeviceptr address, size_t size)
{
	if (result == CUDA_SUCCESS) {
		blocks_keep_on_gpu(address, size);
		mappings_keep_on_gpu(address, size);
	}
	return result;
}

GATED_HOOK(cuMulticastBindMem, ALLOC,
	   (CUmemGenericAllocationHandle multicast, size_t multicast_offset, CUmemGenericAllocationHandle handle,
	    size_t offset, size_t size, unsigned long long flags),
	   (multicast, multicast_offset, handle, offset, size, flags), handle = mapping_real_handle(handle, true), called)
GATED_HOOK(cuMulticastBindMem_v2, ALLOC,
	   (CUmemGenericAllocationHandle multicast, CUdevice device, size_t multicast_offset,
	    CUmemGenericAllocationHandle handle, size_t offset, size_t size, unsigned long long flags),
	   (multicast, device, multicast_offset, handle, offset, size, flags), handle = mapping_real_handle(handle, true),
	   called)
GATED_HOOK(cuMulticastBindAddr, ALLOC,
	   (CUmemGenericAllocationHandle multicast, size_t offset, CUdeviceptr address, size_t size,
	    unsigned long long flags),
	   (multicast, offset, address, size, flags), NOTHING_BEFORE, keep(called, address, size))
GATED_HOOK(cuMulticastBindAddr_v2, ALLOC,
	   (CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset, CUdeviceptr address, size_t size,
	    unsigned long long flags),
	   (multicast, device, offset, address, size, flags), NOTHING_BEFORE, keep(called, address, size))
GATED_HOOK(cuLogicalEndpointBindAddr, ALLOC,
	   (unsigned int endpoint, CUdevice device, size_t offset, void *address, size_t size, unsigned long long flags),
	   (endpoint, device, offset, address, size, flags), NOTHING_BEFORE,
	   keep(called, (CUdeviceptr)(uintptr_t)address, size))
GATED_HOOK(cuLogicalEndpointBindMem, ALLOC,
	   (unsigned int endpoint, CUdevice device, size_t endpoint_offset, CUmemGenericAllocationHandle handle,
	    size_t offset, size_t size, unsigned long long flags),
	   (endpoint, device, endpoint_offset, handle, offset, size, flags), handle = mapping_real_handle(handle, true),
	   called)
GATED_HOOK(cuMemGetHandleForAddressRange, ALLOC,
	   (void *handle, CUdeviceptr address, size_t size, int type, unsigned long long flags),
	   (handle, address, size, type, flags), NOTHING_BEFORE, keep(called, address, size))
