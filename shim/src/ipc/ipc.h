/* Legacy CUDA IPC (cuIpcGetMemHandle, …) of backed memory, which the driver's own does not know: the handle names a
 * descriptor of the physical memory, which the opening process asks a thread of this one for. Memory that has a handle
 * stays on the GPU.  */
#pragma once

#include <stdbool.h>

#include "driver/cuda_types.h"
#include "memory/blocks/block.h"

#define IPC_HANDLE_VERSION 1

/* What the bytes of a CUipcMemHandle mean if we made it; any bytes may come in.  */
struct ipc_handle {
	uint64_t magic;
	uint32_t version;
	uint8_t process[16]; /* the exporting process: at random, and in its socket's name */
	uint8_t token[16];   /* the allocation: any process of the same user that has it may have the memory */
	uint8_t zeros[20];   /* for later versions */
};

_Static_assert(sizeof(struct ipc_handle) == sizeof(CUipcMemHandle), "IPC handle");

bool ipc_handle_is_ours(const CUipcMemHandle *handle);

/* The handle of the block that contains `address`; CUDA_ERROR_NOT_FOUND: not backed. Inside the gate.  */
CUresult ipc_export(CUdeviceptr address, CUipcMemHandle *handle);

/* Ask the exporting process for the memory behind a handle of ours, before the gate; then map it, inside. A handle that
 * is open already in the current context is only counted.  */
struct ipc_memory {
	int fds[BLOCK_PARTS_MAX]; /* of the block's parts; to be closed with ipc_memory_close */
	unsigned count;
	uint64_t size, mapped;
};
void ipc_memory_close(struct ipc_memory *memory);
CUresult ipc_fetch(const CUipcMemHandle *handle, struct ipc_memory *memory);
CUresult ipc_open(const CUipcMemHandle *handle, const struct ipc_memory *memory, CUdeviceptr *address);

/* False: not opened here by ipc_open. Never waits for the GPU when that is with others.  */
bool ipc_close(CUdeviceptr address);

/* The block that begins there goes: no other process can open it from now on.  */
void ipc_block_ends(CUdeviceptr address);
