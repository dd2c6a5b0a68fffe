/* Memory handles as file descriptors, between processes. The one that made the memory pays for it.  */
#include <fcntl.h>
#include <unistd.h>

#include "api.h"
#include "vmm.h"

SIM_API CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle given, int type, unsigned long long flags)
{
	struct memory_handle *handle;
	int fd = -1;

	ENTER("cuMemExportToShareableHandle");
	if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	ranges_read();
	handle = vmm_handle(given);
	if (handle && handle->fd >= 0)
		fd = fcntl(handle->fd, F_DUPFD_CLOEXEC, 0);
	ranges_done();
	if (fd < 0)
		return CUDA_ERROR_INVALID_VALUE;
	*(int *)out = fd;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *made, void *os_handle, int type)
{
	struct memory_handle *handle;
	int fd = (int)(intptr_t)os_handle;
	off_t size = lseek(fd, 0, SEEK_END);

	ENTER("cuMemImportFromShareableHandle");
	if (!made || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || size <= 0 || (uint64_t)size % SIM_GRANULARITY)
		return CUDA_ERROR_INVALID_VALUE;
	handle = object_new(OBJECT_MEMORY, sizeof(*handle));
	if (!handle)
		return CUDA_ERROR_OUT_OF_MEMORY;
	handle->references = 1;
	handle->size = (uint64_t)size;
	handle->imported = true;
	handle->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	handle->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	handle->properties.requestedHandleTypes = type;
	handle->properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	if (handle->fd < 0) {
		object_free(OBJECT_MEMORY, handle);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	*made = (uintptr_t)handle;
	return CUDA_SUCCESS;
}
