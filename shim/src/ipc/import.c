#include "base/growable.h"
#include "ipc/ipc.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/per_process.h"
#include "driver/real_driver.h"
#include "gpu/contexts.h"
#include "ipc/export.h"
#include "ipc/socket.h"
#include "memory/blocks/block.h"
#include "state/depth.h"

/* A handle that this process opened: each context opens it once, and counts how often the program did.  */
struct import {
	CUdeviceptr address;
	CUcontext context;
	uint8_t token[16];
	unsigned references;
};

static OF_PROCESS pthread_mutex_t imports_lock = PTHREAD_MUTEX_INITIALIZER;
static OF_PROCESS struct import *imports;
static OF_PROCESS size_t imports_count, imports_size;

/* Export the descriptors of all parts, or of none.  */
static CUresult export_parts(const CUmemGenericAllocationHandle *handles, unsigned parts, int *fds)
{
	for (unsigned i = 0; i < parts; i++) {
		CUresult result = driver.cuMemExportToShareableHandle(&fds[i], handles[i],
								      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);

		if (result == CUDA_SUCCESS)
			continue;
		while (i > 0)
			close(fds[--i]);
		return result;
	}
	return CUDA_SUCCESS;
}

static CUresult export_block(CUdeviceptr address, struct ipc_handle *ours)
{
	CUmemGenericAllocationHandle handles[BLOCK_PARTS_MAX];
	int fds[BLOCK_PARTS_MAX], error;
	struct block block;
	unsigned parts = block_share(address, &block, handles);
	CUresult result;

	if (parts == 0)
		return CUDA_ERROR_INVALID_VALUE; /* freed meanwhile */
	result = export_parts(handles, parts, fds);
	if (result != CUDA_SUCCESS)
		return result;
	error = exports_add(&block, fds, parts, ours);
	if (error == 0)
		return CUDA_SUCCESS;
	log_line("no IPC handle: %s", strerror(-error));
	while (parts > 0)
		close(fds[--parts]);
	return CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult ipc_export(CUdeviceptr address, CUipcMemHandle *handle)
{
	struct ipc_handle ours;
	struct block block;

	if (!block_find(address, &block))
		return CUDA_ERROR_NOT_FOUND;
	if (block.imported)
		return CUDA_ERROR_INVALID_VALUE;
	if (!block.context->device->exportable)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!exports_find(block.address, &ours)) {
		CUresult result;

		checkpoint_refuse(REASON_SHARES_MEMORY);
		result = export_block(address, &ours);
		if (result != CUDA_SUCCESS)
			return result;
	}
	memcpy(handle, &ours, sizeof(*handle));
	return CUDA_SUCCESS;
}

static bool is_plain(const struct ipc_handle *handle)
{
	static const uint8_t zeros[sizeof(handle->zeros)];

	return handle->version == IPC_HANDLE_VERSION && memcmp(handle->zeros, zeros, sizeof(zeros)) == 0;
}

CUresult ipc_fetch(const CUipcMemHandle *given, struct ipc_memory *memory)
{
	struct ipc_handle handle;
	struct ipc_request request;
	struct ipc_reply reply;
	int error;

	memory->count = 0;
	memcpy(&handle, given, sizeof(handle));
	if (!is_plain(&handle))
		return CUDA_ERROR_INVALID_VALUE;
	if (exports_made(&handle))
		return CUDA_ERROR_INVALID_CONTEXT; /* the maker has the memory already: the driver's own words */
	request = (struct ipc_request){.magic = handle.magic, .version = handle.version};
	memcpy(request.token, handle.token, sizeof(request.token));
	error = ipc_socket_ask(handle.process, &request, &reply, memory->fds, &memory->count);
	if (error) {
		log_line("no answer to an IPC handle: %s", strerror(-error));
		return error == -ECONNREFUSED ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_MAP_FAILED;
	}
	memory->size = reply.size;
	memory->mapped = reply.mapped;
	if (reply.magic == request.magic && memcmp(reply.token, request.token, sizeof(reply.token)) == 0 &&
	    reply.error == 0 && memory->count > 0 && reply.size && reply.size <= reply.mapped)
		return CUDA_SUCCESS;
	ipc_memory_close(memory);
	return CUDA_ERROR_INVALID_VALUE;
}

static struct import *find_open(const uint8_t token[16], CUcontext context)
{
	for (size_t i = 0; i < imports_count; i++)
		if (imports[i].context == context && memcmp(imports[i].token, token, sizeof(imports[i].token)) == 0)
			return &imports[i];
	return NULL;
}

static struct import *find_address(CUdeviceptr address)
{
	for (size_t i = 0; i < imports_count; i++)
		if (imports[i].address == address)
			return &imports[i];
	return NULL;
}

void ipc_memory_close(struct ipc_memory *memory)
{
	while (memory->count > 0)
		close(memory->fds[--memory->count]);
}

static CUresult import(const struct ipc_memory *memory, CUdeviceptr *address)
{
	CUmemGenericAllocationHandle handles[BLOCK_PARTS_MAX];
	CUresult result = CUDA_SUCCESS;
	unsigned i;

	for (i = 0; i < memory->count && result == CUDA_SUCCESS; i++)
		result = driver.cuMemImportFromShareableHandle(&handles[i], (void *)(uintptr_t)memory->fds[i],
							       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	i -= result != CUDA_SUCCESS;
	if (result == CUDA_SUCCESS)
		result = block_import(handles, i, memory->size, memory->mapped, address);
	while (result != CUDA_SUCCESS && i > 0)
		driver.cuMemRelease(handles[--i]);
	return result;
}

/* With the lock held.  */
static CUresult open_in(CUcontext context, const struct ipc_handle *handle, const struct ipc_memory *memory,
			CUdeviceptr *address)
{
	struct import *known = find_open(handle->token, context), *stale;
	CUresult result;

	if (known && block_find(known->address, &(struct block){0})) {
		known->references++;
		*address = known->address;
		return CUDA_SUCCESS;
	}
	if (!array_has_room(imports, imports_count, imports_size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = import(memory, address);
	if (result != CUDA_SUCCESS)
		return result;
	stale = find_address(*address); /* it went with its context */
	if (stale)
		*stale = imports[--imports_count];
	imports[imports_count] = (struct import){.address = *address, .context = context, .references = 1};
	memcpy(imports[imports_count++].token, handle->token, sizeof(handle->token));
	checkpoint_refuse(REASON_SHARES_MEMORY);
	return CUDA_SUCCESS;
}

CUresult ipc_open(const CUipcMemHandle *given, const struct ipc_memory *memory, CUdeviceptr *address)
{
	struct context *context = context_current();
	struct ipc_handle handle;
	CUresult result;

	if (!context || !context->device->can_map || !context->device->exportable)
		return CUDA_ERROR_INVALID_CONTEXT;
	memcpy(&handle, given, sizeof(handle));
	pthread_mutex_lock(&imports_lock);
	result = open_in(context->handle, &handle, memory, address);
	pthread_mutex_unlock(&imports_lock);
	return result;
}

bool ipc_close(CUdeviceptr address)
{
	struct import *import;
	bool last = false;

	pthread_mutex_lock(&imports_lock);
	import = find_address(address);
	if (import) {
		last = --import->references == 0;
		if (last)
			*import = imports[--imports_count];
	}
	pthread_mutex_unlock(&imports_lock);
	return last ? block_end_import(address) : import != NULL;
}
