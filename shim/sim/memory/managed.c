/* Managed memory: on the host until a GPU touches it or it is prefetched there. The driver's checkpoint refuses it.  */

#include "driver/api.h"
#include "driver/device.h"
#include "stream/capture.h"
#include "memory/memory.h"

#define HOST_DEVICE (-1)

struct prefetch {
	struct operation operation;
	CUdeviceptr address;
	int device;
};

bool managed_exists(void)
{
	struct range *range;
	uint64_t next = 0;
	bool found = false;

	ranges_read();
	while (!found && (range = ranges_from(&memory_ranges, next))) {
		found = range->kind == RANGE_MANAGED;
		next = range->start + range->size;
	}
	ranges_done();
	return found;
}

SIM_API CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned int flags)
{
	ENTER_CONTEXT("cuMemAllocManaged", context);
	if (!address || !size || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	refused_ = capture_unsafe();
	return refused_ == CUDA_SUCCESS ? memory_new_block(context, RANGE_MANAGED, size, NULL, address) : refused_;
}

/* The whole allocation moves, whatever part of it was asked for.  */
static CUresult run_prefetch(struct operation *operation, CUstream stream)
{
	struct prefetch *prefetch = (struct prefetch *)operation;
	struct range *range;

	(void)stream;
	ranges_write();
	range = ranges_find(&memory_ranges, prefetch->address);
	if (range && range->kind == RANGE_MANAGED) {
		unsigned gpu = device_gpu(range->device);

		if (prefetch->device == HOST_DEVICE && range->on_device) {
			machine_refund(gpu, range->charged);
			range->on_device = false;
		} else if (prefetch->device != HOST_DEVICE && !range->on_device) {
			range->on_device = machine_charge(gpu, range->charged);
		}
	}
	ranges_done();
	return CUDA_SUCCESS;
}

static CUresult prefetch(CUdeviceptr address, size_t size, int device, CUstream handle)
{
	struct prefetch *operation;
	struct range *range;
	CUstream stream;
	bool managed;

	ENTER_CONTEXT("cuMemPrefetchAsync", context);
	if (!size)
		return CUDA_ERROR_INVALID_VALUE;
	if (device != HOST_DEVICE && !device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	ranges_read();
	range = ranges_find(&memory_ranges, address);
	managed = range && range->kind == RANGE_MANAGED && address + size <= range->start + range->size;
	ranges_done();
	refused_ = managed ? stream_of(context, handle, &stream) : CUDA_ERROR_INVALID_VALUE;
	if (refused_ != CUDA_SUCCESS)
		return refused_;
	operation = operation_new(sizeof(*operation), run_prefetch);
	if (!operation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	operation->address = address;
	operation->device = device;
	return stream_submit(stream, &operation->operation, NULL);
}

static int device_at(CUmemLocation location)
{
	return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id
	       : location.type >= CU_MEM_LOCATION_TYPE_HOST && location.type <= 4 ? HOST_DEVICE
										  : -2;
}

SIM_API CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t size, CUdevice device, CUstream stream)
{
	return prefetch(address, size, device, stream);
}

SIM_API CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr address, size_t size, CUdevice device, CUstream stream)
{
	return prefetch(address, size, device, PER_THREAD(stream));
}

SIM_API CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t size, CUmemLocation location, unsigned int flags,
				       CUstream stream)
{
	return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(address, size, device_at(location), stream);
}

SIM_API CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr address, size_t size, CUmemLocation location, unsigned int flags,
					    CUstream stream)
{
	return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(address, size, device_at(location), PER_THREAD(stream));
}
