/* The blocks that this process gave a legacy IPC handle to, and the descriptors that stand for them.  */
#pragma once

#include "ipc/ipc.h"
#include "memory/blocks/block.h"

/* Find the handle of an exported block. Return false if it is not exported yet.  */
bool exports_find(CUdeviceptr block, struct ipc_handle *handle);

/* Export a block: the descriptors of its parts stay open until the block ends, or are closed now if another thread exported it first. Return
 * 0, or a negative errno: then the caller still has the descriptors.  */
int exports_add(const struct block *block, const int *fds, unsigned count, struct ipc_handle *handle);

/* Return whether this process made the handle.  */
bool exports_made(const struct ipc_handle *handle);

void exports_close_in_child(void);
