/* Hooks on virtual memory management: the application's own handles and mappings, behind handles of ours.  */
#include "driver/real_driver.h"
#include "hooks/gated_hook.h"
#include "memory/app_mappings/app_mappings.h"
#include "memory/blocks/block.h"
#include "mover/mover.h"
#include "state/shim_state.h"

static CUresult create_handle(void *real, CUmemGenericAllocationHandle *handle, size_t size,
			      const CUmemAllocationProp *prop, unsigned long long flags)
{
	GATE_PASS(pass);
	CUresult result = gate_enter_as(&pass, AFFINODE_CLASS_ALLOC, "cuMemCreate");

	if (result != CUDA_SUCCESS)
		return result;
	result = ((CUresult(*)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
			       unsigned long long))real)(handle, size, prop, flags);
	if (result == CUDA_SUCCESS && handle && prop && shim_is_on() && !shim_is_unparkable())
		*handle = mapping_adopt(*handle, size, prop);
	return result;
}

ROOM_HOOK(cuMemCreate,
	  (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags),
	  (handle, size, prop, flags), create_handle, after_out_of_memory(size, &wait))

/* A free never waits for the GPU, but it waits for a move under way, which works on the same memory.  */
static CUresult on_cuMemRelease(void *real, CUmemGenericAllocationHandle handle)
{
	GATE_PASS(pass);
	bool held = mover_hold(&pass);
	CUresult result;

	if (!mapping_release(handle, &result))
		result = ((CUresult(*)(CUmemGenericAllocationHandle))real)(handle);
	if (held)
		mover_let_go();
	return result;
}
HOOK(cuMemRelease, (CUmemGenericAllocationHandle handle), handle)

static CUresult on_cuMemMap(void *real, CUdeviceptr address, size_t size, size_t offset,
			    CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	GATE_PASS(pass);
	CUresult result = gate_enter(&pass, AFFINODE_CLASS_ALLOC);

	if (result != CUDA_SUCCESS)
		return result;
	result = ((CUresult(*)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))real)(
		address, size, offset, mapping_real_handle(handle, offset != 0), flags);
	if (result == CUDA_SUCCESS)
		mapping_mapped(handle, address, size);
	return result;
}
HOOK(cuMemMap,
     (CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags),
     address, size, offset, handle, flags)

static CUresult on_cuMemUnmap(void *real, CUdeviceptr address, size_t size)
{
	GATE_PASS(pass);
	bool held = mover_hold(&pass);
	CUresult result;

	if (!mapping_unmap(address, size, &result))
		result = ((CUresult(*)(CUdeviceptr, size_t))real)(address, size);
	if (held)
		mover_let_go();
	return result;
}
HOOK(cuMemUnmap, (CUdeviceptr address, size_t size), address, size)

static CUresult on_cuMemSetAccess(void *real, CUdeviceptr address, size_t size, const CUmemAccessDesc *access,
				  size_t count)
{
	GATE_PASS(pass);
	CUresult result = gate_enter(&pass, AFFINODE_CLASS_ALLOC);

	while (result == CUDA_SUCCESS && mover_is_copying()) {
		gate_leave(&pass);
		mover_wait_for_copies();
		result = gate_enter(&pass, AFFINODE_CLASS_ALLOC);
	}
	if (result != CUDA_SUCCESS)
		return result;
	result = ((CUresult(*)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))real)(address, size, access, count);
	if (result == CUDA_SUCCESS && access)
		mapping_set_access(address, size, access, count);
	return result;
}
HOOK(cuMemSetAccess, (CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count), address, size,
     access, count)

static CUresult on_cuMemGetAccess(void *real, unsigned long long *flags, const CUmemLocation *location,
				  CUdeviceptr address)
{
	if (flags && location && mapping_parked_access(address, location, flags))
		return CUDA_SUCCESS;
	return ((CUresult(*)(unsigned long long *, const CUmemLocation *, CUdeviceptr))real)(flags, location, address);
}
HOOK(cuMemGetAccess, (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address), flags, location,
     address)

static CUresult on_cuMemRetainAllocationHandle(void *real, CUmemGenericAllocationHandle *handle, void *address)
{
	GATE_PASS(pass);
	CUmemGenericAllocationHandle ours;
	struct block block;
	CUresult result = gate_enter(&pass, AFFINODE_CLASS_ALLOC);

	if (result != CUDA_SUCCESS)
		return result;
	/* cuMemAlloc's memory has no handle to give; a real one would keep a parked block's memory from going.  */
	if (block_find((CUdeviceptr)(uintptr_t)address, &block))
		return CUDA_ERROR_INVALID_VALUE;
	ours = handle ? mapping_retain((CUdeviceptr)(uintptr_t)address) : 0;
	if (ours) {
		*handle = ours;
		return CUDA_SUCCESS;
	}
	return ((CUresult(*)(CUmemGenericAllocationHandle *, void *))real)(handle, address);
}
HOOK(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *address), handle, address)

static CUresult on_cuMemGetAllocationPropertiesFromHandle(void *real, CUmemAllocationProp *prop,
							  CUmemGenericAllocationHandle handle)
{
	if (prop && mapping_properties(handle, prop))
		return CUDA_SUCCESS;
	return ((CUresult(*)(CUmemAllocationProp *, CUmemGenericAllocationHandle))real)(prop, handle);
}
HOOK(cuMemGetAllocationPropertiesFromHandle, (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle), prop,
     handle)

/* Physical memory stays on the GPU that another process will map.  */
GATED_HOOK(cuMemExportToShareableHandle, ALLOC,
	   (void *shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags),
	   (shareable, handle, type, flags), handle = mapping_real_handle(handle, true), called)
