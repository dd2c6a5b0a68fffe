/* Pinned host memory: cuMemHostAlloc and cuMemHostRegister.  */
#include <sys/mman.h>
#include <unistd.h>

#include "driver/api.h"
#include "stream/capture.h"
#include "machine/faults.h"
#include "memory/memfile.h"
#include "memory/ranges.h"
#include "stream/stream.h"

static uint64_t pages(uint64_t size)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	return (size + page - 1) / page * page;
}

static CUresult allocate(CUcontext context, void **pointer, size_t size, unsigned flags)
{
	struct range range = {.size = size, .kind = RANGE_HOST, .device = context->device, .context = context,
			      .charged = pages(size)};
	void *memory;
	bool added;

	if (!pointer || !size || (flags & ~(unsigned)CU_MEMHOSTALLOC_FLAGS))
		return CUDA_ERROR_INVALID_VALUE;
	memory = mmap(NULL, range.charged, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	range.start = (uintptr_t)memory;
	ranges_write();
	added = ranges_add(&memory_ranges, &range);
	ranges_done();
	if (!added) {
		munmap(memory, range.charged);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*pointer = memory;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemHostAlloc(void **pointer, size_t size, unsigned int flags)
{
	ENTER_CONTEXT("cuMemHostAlloc", context);
	refused_ = capture_unsafe();
	return refused_ == CUDA_SUCCESS ? allocate(context, pointer, size, flags) : refused_;
}

/* Finds the range that starts at the pointer and is of that kind.  */
static struct range *range_at(void *pointer, enum range_kind kind)
{
	struct range *range = ranges_find(&memory_ranges, (uintptr_t)pointer);

	return range && range->start == (uintptr_t)pointer && range->kind == kind ? range : NULL;
}

SIM_API CUresult cuMemFreeHost(void *pointer)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	CUcontext owner = NULL;
	struct range *range;

	ENTER_CONTEXT("cuMemFreeHost", context);
	refused_ = capture_unsafe();
	if (refused_ != CUDA_SUCCESS)
		return refused_;
	ranges_read();
	range = range_at(pointer, RANGE_HOST);
	if (range)
		owner = range->context;
	ranges_done();
	if (owner)
		streams_finish(owner);
	ranges_write();
	range = range_at(pointer, RANGE_HOST);
	if (range) {
		address_release(range->start, range->charged);
		ranges_remove(&memory_ranges, range->start);
		result = CUDA_SUCCESS;
	}
	ranges_done();
	return result;
}

SIM_API CUresult cuMemHostRegister_v2(void *pointer, size_t size, unsigned int flags)
{
	struct range range = {.start = (uintptr_t)pointer, .size = size, .kind = RANGE_REGISTERED};
	struct range *other;
	CUresult result = CUDA_SUCCESS;

	ENTER_CONTEXT("cuMemHostRegister", context);
	if (!pointer || !size || (flags & ~(unsigned)CU_MEMHOSTREGISTER_FLAGS))
		return CUDA_ERROR_INVALID_VALUE;
	refused_ = capture_unsafe();
	if (refused_ != CUDA_SUCCESS)
		return refused_;
	range.device = context->device;
	range.context = context;
	ranges_write();
	other = ranges_from(&memory_ranges, range.start);
	if (other && other->start < range.start + size)
		result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	else if (!ranges_add(&memory_ranges, &range))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	else
		faults_note_registered((int64_t)size);
	ranges_done();
	return result;
}

SIM_API CUresult cuMemHostUnregister(void *pointer)
{
	CUresult result = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	CUcontext owner = NULL;
	struct range *range;
	bool inside;

	ENTER_CONTEXT("cuMemHostUnregister", context);
	refused_ = capture_unsafe();
	if (refused_ != CUDA_SUCCESS)
		return refused_;
	ranges_read();
	range = range_at(pointer, RANGE_REGISTERED);
	if (range)
		owner = range->context;
	inside = !range && ranges_find(&memory_ranges, (uintptr_t)pointer);
	ranges_done();
	if (inside)
		return CUDA_ERROR_INVALID_VALUE;
	if (owner)
		streams_finish(owner);
	ranges_write();
	range = range_at(pointer, RANGE_REGISTERED);
	if (range) {
		faults_note_registered(-(int64_t)range->size);
		ranges_remove(&memory_ranges, (uintptr_t)pointer);
		result = CUDA_SUCCESS;
	}
	ranges_done();
	return result;
}
