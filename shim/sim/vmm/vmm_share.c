/* Memory handles as file descriptors, between processes. The one that made the memory pays for it.  */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver/api.h"
#include "memory/memfile.h"
#include "vmm/vmm.h"

/* Whether `size` bytes, mapped where nothing else is, could be written over to the file.  */
static bool write_all(int fd, const char *from, uint64_t size)
{
	for (uint64_t done = 0; done < size;) {
		ssize_t n = pwrite(fd, from + done, size - done, (off_t)done);

		if (n <= 0)
			return false;
		done += (uint64_t)n;
	}
	return true;
}

/* The contents of memory in the process's common file, in a file of their own.  */
static int copy_to_own_file(const struct memory_handle *handle)
{
	void *from = mmap(NULL, handle->size, PROT_READ, MAP_SHARED, memfile_fd(), (off_t)handle->offset);
	int fd = from == MAP_FAILED ? -1 : memfile_create(handle->size);

	if (fd >= 0 && !write_all(fd, from, handle->size)) {
		close(fd);
		fd = -1;
	}
	if (from != MAP_FAILED)
		munmap(from, handle->size);
	return fd;
}

/* The first export moves the memory out of the process's common file, under whatever maps it; no thread touches it
 * while the tables are held for writing.  */
static bool give_own_file(struct memory_handle *handle)
{
	struct range *range;
	int fd;

	if (handle->fd >= 0)
		return true;
	fd = copy_to_own_file(handle);
	if (fd < 0)
		return false;
	for (uint64_t next = 0; (range = ranges_from(&memory_ranges, next)); next = range->start + range->size) {
		if (range->kind != RANGE_MAPPED || range->owner != handle)
			continue;
		if (address_map(range->start, range->size, fd, 0) != 0) {
			close(fd);
			return false;
		}
		range->file_offset = 0;
	}
	memfile_drop(handle->offset, handle->size);
	handle->offset = MEMFILE_NONE;
	handle->fd = fd;
	return true;
}

SIM_API CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle given, int type, unsigned long long flags)
{
	struct memory_handle *handle;
	int fd = -1;

	ENTER("cuMemExportToShareableHandle");
	if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	ranges_write();
	handle = vmm_handle(given);
	if (handle && handle->properties.requestedHandleTypes && give_own_file(handle))
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
