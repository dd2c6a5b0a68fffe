#include "ipc.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blocks.h"
#include "checkpoint.h"
#include "contexts.h"
#include "driver.h"
#include "ipc_exports.h"
#include "ipc_socket.h"
#include "log.h"

#define SHARES "it shares GPU memory with other processes or devices"

/* A handle that this process opened: once a context, and counted.  */
struct import {
	CUdeviceptr address;
	CUcontext context;
	uint8_t token[16];
	unsigned references;
};

static pthread_mutex_t imports_lock = PTHREAD_MUTEX_INITIALIZER;
static struct import *imports;
static size_t imports_count, imports_size;

CUresult ipc_export(CUdeviceptr address, CUipcMemHandle *handle)
{
	struct ipc_handle ours;
	struct block block;
	CUmemGenericAllocationHandle memory;
	CUresult result;
	int fd = -1, error;

	if (!block_find(address, &block))
		return CUDA_ERROR_NOT_FOUND;
	if (block.imported)
		return CUDA_ERROR_INVALID_VALUE;
	if (!block.context->device->exportable)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!exports_find(block.address, &ours)) {
		checkpoint_refuse(SHARES);
		memory = block_share(address, &block);
		if (!memory)
			return CUDA_ERROR_INVALID_VALUE; /* freed meanwhile */
		result = driver.cuMemExportToShareableHandle(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
		if (result != CUDA_SUCCESS)
			return result;
		error = exports_add(&block, fd, &ours);
		if (error) {
			log_line("no IPC handle: %s", strerror(-error));
			close(fd);
			return CUDA_ERROR_OPERATING_SYSTEM;
		}
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

	memory->fd = -1;
	memcpy(&handle, given, sizeof(handle));
	if (!is_plain(&handle))
		return CUDA_ERROR_INVALID_VALUE;
	if (exports_made(&handle))
		return CUDA_ERROR_INVALID_CONTEXT; /* the maker has the memory already: the driver's own words */
	request = (struct ipc_request){.magic = handle.magic, .version = handle.version};
	memcpy(request.token, handle.token, sizeof(request.token));
	error = ipc_socket_ask(handle.process, &request, &reply, &memory->fd);
	if (error) {
		log_line("no answer to an IPC handle: %s", strerror(-error));
		return error == -ECONNREFUSED ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_MAP_FAILED;
	}
	memory->size = reply.size;
	memory->mapped = reply.mapped;
	if (reply.magic == request.magic && memcmp(reply.token, request.token, sizeof(reply.token)) == 0 &&
	    reply.error == 0 && memory->fd >= 0 && reply.size && reply.size <= reply.mapped)
		return CUDA_SUCCESS;
	if (memory->fd >= 0)
		close(memory->fd);
	memory->fd = -1;
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

static bool make_room(void)
{
	size_t size = imports_size ? 2 * imports_size : 16;
	struct import *more;

	if (imports_count < imports_size)
		return true;
	more = realloc(imports, size * sizeof(*more));
	if (!more)
		return false;
	imports = more;
	imports_size = size;
	return true;
}

static CUresult import(const struct ipc_memory *memory, CUdeviceptr *address)
{
	CUmemGenericAllocationHandle handle;
	CUresult result = driver.cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)memory->fd,
								CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

	if (result != CUDA_SUCCESS)
		return result;
	result = block_import(handle, memory->size, memory->mapped, address);
	if (result != CUDA_SUCCESS)
		driver.cuMemRelease(handle);
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
	if (!make_room())
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = import(memory, address);
	if (result != CUDA_SUCCESS)
		return result;
	stale = find_address(*address); /* it went with its context */
	if (stale)
		*stale = imports[--imports_count];
	imports[imports_count] = (struct import){.address = *address, .context = context, .references = 1};
	memcpy(imports[imports_count++].token, handle->token, sizeof(handle->token));
	checkpoint_refuse(SHARES);
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

void ipc_reset_in_child(void)
{
	pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

	memcpy(&imports_lock, &fresh, sizeof(fresh));
	imports_count = 0;
	exports_reset_in_child();
}
