/* Hooks on legacy IPC of memory. Backed memory goes by handles of our own; the driver's are left to the driver.  */
#include <unistd.h>

#include "base/log.h"
#include "driver/hook.h"
#include "gate/gate.h"
#include "ipc/ipc.h"
#include "memory/blocks/block.h"
#include "state/shim_state.h"

static void tell_why_not(void)
{
	static _Atomic int told;

	if (!atomic_exchange(&told, 1))
		tell_person("this GPU's driver cannot share large CUDA memory with other processes in a way that lets "
			    "the kernel be freed. Start the kernel with AFFINODE_DISABLE=1 to share it "
			    "(torch.multiprocessing with CUDA tensors); its GPU is then never freed.");
}

static CUresult on_cuIpcGetMemHandle(void *real, CUipcMemHandle *handle, CUdeviceptr address)
{
	GATE_PASS(pass);
	CUresult result = gate_enter(&pass, AFFINODE_CLASS_ALLOC);

	if (result != CUDA_SUCCESS)
		return result;
	result = handle && shim_is_on() ? ipc_export(address, handle) : CUDA_ERROR_NOT_FOUND;
	if (result == CUDA_ERROR_NOT_FOUND)
		return ((CUresult(*)(CUipcMemHandle *, CUdeviceptr))real)(handle, address);
	if (result == CUDA_ERROR_NOT_SUPPORTED)
		tell_why_not();
	return result;
}
HOOK(cuIpcGetMemHandle, (CUipcMemHandle * handle, CUdeviceptr address), handle, address)

/* The other process is asked before the gate: a wait for it must not be a call in flight.  */
static CUresult open_ours(CUdeviceptr *address, const CUipcMemHandle *handle, unsigned int flags)
{
	GATE_PASS(pass);
	struct ipc_memory memory;
	CUresult result;

	if (!address || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return CUDA_ERROR_INVALID_VALUE;
	result = ipc_fetch(handle, &memory);
	if (result != CUDA_SUCCESS)
		return result;
	result = gate_enter_as(&pass, AFFINODE_CLASS_ALLOC, "cuIpcOpenMemHandle");
	if (result == CUDA_SUCCESS)
		result = ipc_open(handle, &memory, address);
	ipc_memory_close(&memory);
	return result;
}

static CUresult on_cuIpcOpenMemHandle(void *real, CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
	GATE_PASS(pass);
	CUresult result;

	if (shim_is_on() && ipc_handle_is_ours(&handle))
		return open_ours(address, &handle, flags);
	result = gate_enter(&pass, AFFINODE_CLASS_ALLOC);
	if (result != CUDA_SUCCESS)
		return result;
	return ((CUresult(*)(CUdeviceptr *, CUipcMemHandle, unsigned int))real)(address, handle, flags);
}
HOOK(cuIpcOpenMemHandle, (CUdeviceptr * address, CUipcMemHandle handle, unsigned int flags), address, handle, flags)

static CUresult on_cuIpcCloseMemHandle(void *real, CUdeviceptr address)
{
	if (ipc_close(address))
		return CUDA_SUCCESS;
	return ((CUresult(*)(CUdeviceptr))real)(address);
}
HOOK(cuIpcCloseMemHandle, (CUdeviceptr address), address)
