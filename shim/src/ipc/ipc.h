/* Legacy CUDA IPC (cuIpcGetMemHandle, …) of backed memory, which the driver's own does not know: the handle names a
 * descriptor of the physical memory, which the opening process asks a thread of this one for. Memory that has a handle
 * stays on the GPU.  */
#pragma once

#include <stdbool.h>

#include "driver/cuda_types.h"
#include "memory/blocks/block.h"

#define IPC_HANDLE_VERSION 1

/* What the bytes of a CUipcMemHandle mean if a shim made it. Any bytes may come in.  */
struct ipc_handle {
	uint64_t magic;
	uint32_t version;
	uint8_t process[16]; /* random bytes of the exporting process, which are in its socket's name */
	uint8_t token[16];   /* random bytes of the allocation: a process of the same user that has them may open the memory */
	uint8_t zeros[20];   /* for later versions */
};

_Static_assert(sizeof(struct ipc_handle) == sizeof(CUipcMemHandle), "IPC handle");

bool ipc_handle_is_ours(const CUipcMemHandle *handle);

/* Make the handle of the block that contains `address`. Return CUDA_ERROR_NOT_FOUND if no block does. Called inside the gate.  */
CUresult ipc_export(CUdeviceptr address, CUipcMemHandle *handle);

/* Ask the exporting process for the memory behind a shim's handle (ipc_fetch, before the gate, since it may wait for that process), then
 * map it (ipc_open, inside). A handle that is open in the current context already is only counted.  */
struct ipc_memory {
	int fds[BLOCK_PARTS_MAX]; /* of the block's parts; to be closed with ipc_memory_close */
	unsigned count;
	uint64_t size, mapped;
};
void ipc_memory_close(struct ipc_memory *memory);
CUresult ipc_fetch(const CUipcMemHandle *handle, struct ipc_memory *memory);
CUresult ipc_open(const CUipcMemHandle *handle, const struct ipc_memory *memory, CUdeviceptr *address);

/* Close what ipc_open mapped. Return false if it did not map that. Never waits while the process is parked.  */
bool ipc_close(CUdeviceptr address);

/* Let no other process open the block that begins there, since it ends.  */
void ipc_block_ends(CUdeviceptr address);
