/* The blocks that this process gave a legacy IPC handle to, and the descriptors that stand for them.  */
#pragma once

#include "ipc/ipc.h"
#include "memory/blocks/block.h"

/* The handle of an exported block; false: it is not exported yet.  */
bool exports_find(CUdeviceptr block, struct ipc_handle *handle);

/* Export it: the descriptors of its parts are kept until the block ends, or closed now if another thread was faster. 0, or a
 * negative errno: they are the caller's still.  */
int exports_add(const struct block *block, const int *fds, unsigned count, struct ipc_handle *handle);

/* Whether a handle was made by this very process.  */
bool exports_made(const struct ipc_handle *handle);

void exports_close_in_child(void);
