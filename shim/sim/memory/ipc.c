/* Legacy IPC of cuMemAlloc memory: the handle names a place in the owner's memory file, which a process of the same user
 * opens through /proc. Memory of cuMemCreate, pools and slabs' neighbours is not shared this way.  */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "driver/api.h"
#include "driver/device.h"
#include "stream/capture.h"
#include "memory/memfile.h"
#include "memory/memory.h"
#include "stream/stream.h"

#define IPC_MAGIC 0x4350494d4953ull /* "SIMIPC" */

struct ipc_handle {
	uint64_t magic;
	uint64_t start_time, offset, size, within;
	int32_t pid, fd;
	uint32_t gpu;
};

_Static_assert(sizeof(struct ipc_handle) <= sizeof(CUipcMemHandle), "IPC handle");

SIM_API CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address)
{
	struct ipc_handle handle = {.magic = IPC_MAGIC, .pid = getpid()};
	const struct range *range;

	ENTER_CONTEXT("cuIpcGetMemHandle", context);
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	ranges_read();
	range = ranges_find(&memory_ranges, address);
	if (range && range->kind == RANGE_DEVICE) {
		/* of a small piece the whole slab is shared, as the driver shares its block */
		uint64_t into = range->owner ? range->start % SIM_GRANULARITY : 0;

		handle.offset = range->file_offset - into;
		handle.size = range->owner ? SIM_GRANULARITY : range->charged;
		handle.within = into;
		handle.gpu = device_gpu(range->device);
	}
	ranges_done();
	if (!handle.size)
		return CUDA_ERROR_INVALID_VALUE;
	handle.start_time = process_start_time(handle.pid);
	handle.fd = memfile_fd();
	memset(out, 0, sizeof(*out));
	memcpy(out, &handle, sizeof(handle));
	return CUDA_SUCCESS;
}

static CUresult map(CUcontext context, const struct ipc_handle *handle, uint64_t *start)
{
	struct range range = {.size = handle->size, .kind = RANGE_IPC, .device = context->device, .context = context,
			      .charged = handle->size, .on_device = true};
	char path[64];
	bool added = false;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle->pid, handle->fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return CUDA_ERROR_MAP_FAILED;
	range.start = address_reserve(handle->size, SIM_GRANULARITY, 0);
	if (range.start && !address_map(range.start, handle->size, fd, handle->offset)) {
		ranges_write();
		added = ranges_add(&memory_ranges, &range);
		ranges_done();
	}
	close(fd);
	if (!added) {
		if (range.start)
			address_release(range.start, handle->size);
		return CUDA_ERROR_MAP_FAILED;
	}
	*start = range.start;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle given, unsigned int flags)
{
	struct ipc_handle handle;
	uint64_t start;

	ENTER_CONTEXT("cuIpcOpenMemHandle", context);
	memcpy(&handle, &given, sizeof(handle));
	if (!address || flags != 1 || handle.magic != IPC_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	if (handle.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT; /* the maker has the memory already */
	if (process_start_time(handle.pid) != handle.start_time || handle.gpu != context->gpu)
		return CUDA_ERROR_INVALID_VALUE;
	refused_ = map(context, &handle, &start);
	if (refused_ == CUDA_SUCCESS)
		*address = start + handle.within;
	return refused_;
}

SIM_API CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
	struct range *range;

	ENTER_CONTEXT("cuIpcCloseMemHandle", context);
	streams_finish(context);
	ranges_write();
	range = ranges_find(&memory_ranges, address);
	if (range && range->kind == RANGE_IPC)
		memory_drop(range);
	else
		refused_ = CUDA_ERROR_INVALID_VALUE;
	ranges_done();
	return refused_;
}
