/* cuMemAlloc and what belongs to it.  */
#include "memory/memory.h"

#include "driver/api.h"
#include "driver/device.h"
#include "stream/capture.h"
#include "memory/memfile.h"
#include "pool/pool.h"
#include "stream/stream.h"

static uint64_t round_up(uint64_t size, uint64_t unit)
{
	return (size + unit - 1) / unit * unit;
}

CUresult memory_new_block(CUcontext context, enum range_kind kind, uint64_t size, void *owner, CUdeviceptr *address)
{
	uint64_t cost = round_up(size, SIM_GRANULARITY);
	struct range range = {.size = size, .kind = kind, .device = context->device, .context = context_home(context),
			      .owner = owner, .charged = cost, .on_device = kind != RANGE_MANAGED};
	bool added;

	if (size > 1ull << 47)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (range.on_device && !machine_charge(context->gpu, cost))
		return CUDA_ERROR_OUT_OF_MEMORY;
	range.file_offset = memfile_take(cost);
	range.start = range.file_offset == MEMFILE_NONE ? 0 : address_reserve(cost, SIM_GRANULARITY, 0);
	if (!range.start || address_map(range.start, cost, memfile_fd(), range.file_offset))
		goto fail;
	ranges_write();
	added = ranges_add(&memory_ranges, &range);
	ranges_done();
	if (!added)
		goto fail;
	*address = range.start;
	return CUDA_SUCCESS;
fail:
	if (range.start)
		address_release(range.start, cost);
	if (range.file_offset != MEMFILE_NONE)
		memfile_drop(range.file_offset, cost);
	if (range.on_device)
		machine_refund(context->gpu, cost);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

void memory_drop_block(struct range *range)
{
	address_release(range->start, range->charged);
	memfile_drop(range->file_offset, range->charged);
	if (range->on_device)
		machine_refund(device_gpu(range->device), range->charged);
	ranges_remove(&memory_ranges, range->start);
}

void memory_drop(struct range *range)
{
	switch (range->kind) {
	case RANGE_DEVICE:
		if (range->owner) {
			slab_drop(range->context, range);
			break;
		}
		/* fall through */
	case RANGE_MANAGED:
		memory_drop_block(range);
		break;
	case RANGE_HOST:
	case RANGE_IPC:
		address_release(range->start, range->charged);
		ranges_remove(&memory_ranges, range->start);
		break;
	case RANGE_REGISTERED:
		ranges_remove(&memory_ranges, range->start);
		break;
	case RANGE_POOL:
		pool_give_back(range);
		break;
	default:
		break;
	}
}

void memory_release_context(CUcontext context)
{
	struct range *range;
	uint64_t next = 0;

	ranges_write();
	while ((range = ranges_from(&memory_ranges, next))) {
		next = range->start + range->size;
		if (range->context == context)
			memory_drop(range);
	}
	slabs_release(context);
	ranges_done();
}

static CUresult allocate(CUcontext context, size_t size, CUdeviceptr *address)
{
	CUresult result;

	if (!size)
		return CUDA_ERROR_INVALID_VALUE;
	if (size > SLAB_LARGEST)
		return memory_new_block(context, RANGE_DEVICE, size, NULL, address);
	ranges_write();
	result = slab_take(context, size, address);
	ranges_done();
	return result;
}

SIM_API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
	ENTER_CONTEXT("cuMemAlloc", context);
	if (!address)
		return CUDA_ERROR_INVALID_VALUE;
	refused_ = capture_unsafe();
	return refused_ == CUDA_SUCCESS ? allocate(context, size, address) : refused_;
}

SIM_API CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	ENTER_CONTEXT("cuMemAllocPitch", context);
	if (!address || !pitch || !width || !height || (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	refused_ = capture_unsafe();
	if (refused_ != CUDA_SUCCESS)
		return refused_;
	*pitch = round_up(width, 512);
	return allocate(context, *pitch * height, address);
}

/* Waits for all work of the context that owns the memory, as the driver does.  */
SIM_API CUresult cuMemFree_v2(CUdeviceptr address)
{
	struct range *range;
	CUcontext owner = NULL;

	ENTER_CONTEXT("cuMemFree", context);
	if (!address)
		return CUDA_SUCCESS;
	refused_ = capture_unsafe();
	if (refused_ != CUDA_SUCCESS)
		return refused_;
	ranges_read();
	range = ranges_find(&memory_ranges, address);
	if (range && range->start == address &&
	    (range->kind == RANGE_DEVICE || range->kind == RANGE_MANAGED || range->kind == RANGE_POOL))
		owner = range->kind == RANGE_POOL ? context : range->context;
	ranges_done();
	if (!owner)
		return CUDA_ERROR_INVALID_VALUE;
	streams_finish(owner);
	ranges_write();
	range = ranges_find(&memory_ranges, address);
	if (!range || range->start != address)
		refused_ = CUDA_ERROR_INVALID_VALUE; /* freed by another thread meanwhile */
	else
		memory_drop(range);
	ranges_done();
	return refused_;
}

SIM_API CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	uint64_t used, all;

	ENTER_CONTEXT("cuMemGetInfo", context);
	if (!free || !total)
		return CUDA_ERROR_INVALID_VALUE;
	used = machine_used(context->gpu);
	all = machine()->gpus[context->gpu].total_bytes;
	*free = used < all ? all - used : 0;
	*total = all;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
	struct range *range;

	ENTER_CONTEXT("cuMemGetAddressRange", context);
	ranges_read();
	range = ranges_find(&memory_ranges, address);
	if (range && base)
		*base = range->start;
	if (range && size)
		*size = range->size;
	ranges_done();
	return range ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
