/* Hooks on binding memory to objects by which others write to it, on this GPU or another: multicast objects, logical endpoints.
 * The physical memory is bound, so it has to stay from then on.  */
#include "driver/hook.h"
#include "gate/gate.h"
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

static CUresult on_cuMulticastBindMem(void *real, CUmemGenericAllocationHandle multicast, size_t multicast_offset,
				      CUmemGenericAllocationHandle handle, size_t offset, size_t size,
				      unsigned long long flags)
{
	GATE_PASS(pass);
	CUresult result = gate_enter(&pass, AFFINODE_CLASS_ALLOC);

	if (result != CUDA_SUCCESS)
		return result;
	return ((CUresult(*)(CUmemGenericAllocationHandle, size_t, CUmemGenericAllocationHandle, size_t, size_t,
			     unsigned long long))real)(multicast, multicast_offset, mapping_real_handle(handle, true),
						       offset, size, flags);
}
HOOK(cuMulticastBindMem,
     (CUmemGenericAllocationHandle multicast, size_t multicast_offset, CUmemGenericAllocationHandle handle,
      size_t offset, size_t size, unsigned long long flags),
     multicast, multicast_offset, handle, offset, size, flags)

static CUresult on_cuMulticastBindMem_v2(void *real, CUmemGenericAllocationHandle multicast, CUdevice device,
					 size_t multicast_offset, CUmemGenericAllocationHandle handle, size_t offset,
					 size_t size, unsigned long long flags)
{
	GATE_PASS(pass);
	CUresult result = gate_enter(&pass, AFFINODE_CLASS_ALLOC);

	if (result != CUDA_SUCCESS)
		return result;
	return ((CUresult(*)(CUmemGenericAllocationHandle, CUdevice, size_t, CUmemGenericAllocationHandle, size_t,
			     size_t, unsigned long long))real)(multicast, device, multicast_offset,
							       mapping_real_handle(handle, true), offset, size, flags);
}
HOOK(cuMulticastBindMem_v2,
     (CUmemGenericAllocationHandle multicast, CUdevice device, size_t multicast_offset,
      CUmemGenericAllocationHandle handle, size_t offset, size_t size, unsigned long long flags),
     multicast, device, multicast_offset, handle, offset, size, flags)

static CUresult on_cuMulticastBindAddr(void *real, CUmemGenericAllocationHandle multicast, size_t offset,
				       CUdeviceptr address, size_t size, unsigned long long flags)
{
	GATE_PASS(pass);
	CUresult result = gate_enter(&pass, AFFINODE_CLASS_ALLOC);

	if (result != CUDA_SUCCESS)
		return result;
	return keep(((CUresult(*)(CUmemGenericAllocationHandle, size_t, CUdeviceptr, size_t, unsigned long long))real)(
			    multicast, offset, address, size, flags),
		    address, size);
}
HOOK(cuMulticastBindAddr,
     (CUmemGenericAllocationHandle multicast, size_t offset, CUdeviceptr address, size_t size, unsigned long long flags),
     multicast, offset, address, size, flags)

static CUresult on_cuMulticastBindAddr_v2(void *real, CUmemGenericAllocationHandle multicast, CUdevice device,
					  size_t offset, CUdeviceptr address, size_t size, unsigned long long flags)
{
	GATE_PASS(pass);
	CUresult result = gate_enter(&pass, AFFINODE_CLASS_ALLOC);

	if (result != CUDA_SUCCESS)
		return result;
	return keep(((CUresult(*)(CUmemGenericAllocationHandle, CUdevice, size_t, CUdeviceptr, size_t,
				  unsigned long long))real)(multicast, device, offset, address, size, flags),
		    address, size);
}
HOOK(cuMulticastBindAddr_v2,
     (CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset, CUdeviceptr address, size_t size,
      unsigned long long flags),
     multicast, device, offset, address, size, flags)

static CUresult on_cuLogicalEndpointBindAddr(void *real, unsigned int endpoint, CUdevice device, size_t offset,
					     void *address, size_t size, unsigned long long flags)
{
	GATE_PASS(pass);
	CUresult result = gate_enter(&pass, AFFINODE_CLASS_ALLOC);

	if (result != CUDA_SUCCESS)
		return result;
	return keep(((CUresult(*)(unsigned int, CUdevice, size_t, void *, size_t, unsigned long long))real)(
			    endpoint, device, offset, address, size, flags),
		    (CUdeviceptr)(uintptr_t)address, size);
}
HOOK(cuLogicalEndpointBindAddr,
     (unsigned int endpoint, CUdevice device, size_t offset, void *address, size_t size, unsigned long long flags), endpoint,
     device, offset, address, size, flags)

static CUresult on_cuLogicalEndpointBindMem(void *real, unsigned int endpoint, CUdevice device, size_t endpoint_offset,
					    CUmemGenericAllocationHandle handle, size_t offset, size_t size,
					    unsigned long long flags)
{
	GATE_PASS(pass);
	CUresult result = gate_enter(&pass, AFFINODE_CLASS_ALLOC);

	if (result != CUDA_SUCCESS)
		return result;
	return ((CUresult(*)(unsigned int, CUdevice, size_t, CUmemGenericAllocationHandle, size_t, size_t,
			     unsigned long long))real)(endpoint, device, endpoint_offset, mapping_real_handle(handle, true),
						       offset, size, flags);
}
HOOK(cuLogicalEndpointBindMem,
     (unsigned int endpoint, CUdevice device, size_t endpoint_offset, CUmemGenericAllocationHandle handle, size_t offset,
      size_t size, unsigned long long flags),
     endpoint, device, endpoint_offset, handle, offset, size, flags)
