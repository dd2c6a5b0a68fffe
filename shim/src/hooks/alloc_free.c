/* Hooks on allocation and free: large blocks are backed, so that their memory can move; the rest is counted.  */
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "base/log.h"
#include "driver/real_driver.h"
#include "driver/symbol_finder.h"
#include "gpu/contexts.h"
#include "gpu/gpu_lock.h"
#include "hooks/gated_hook.h"
#include "memory/blocks/block.h"
#include "memory/managed_memory.h"
#include "memory/unmovable_bytes.h"
#include "mover/mover.h"
#include "state/shim_state.h"

/* cuMemAllocPitch's row alignment, as the driver chooses it for every element size (seen on an H200).  */
#define PITCH_BYTES 512

static const struct context *current_context(void)
{
	return shim_is_on() ? context_current() : NULL;
}

/* Enter the gate, and free what waits to be freed, since that may be the memory that is asked for. If the mover is reading
 * those blocks for a park, it frees them as soon as it has given the park up, since a call waits.  */
static CUresult enter_to_allocate(struct gate_pass *pass, const char *name)
{
	CUresult result = gate_enter_named(pass, AFFINODE_CLASS_ALLOC, &name);

	while (result == CUDA_SUCCESS && blocks_wait_to_be_freed() && mover_is_copying()) {
		gate_leave(pass);
		mover_wait_for_copies();
		result = gate_enter_named(pass, AFFINODE_CLASS_ALLOC, &name);
	}
	/* Copying cannot begin while we are inside. A capture would be broken by the synchronise, without which work that
	 * still runs may use the memory; it is freed at the capture's end.  */
	if (result == CUDA_SUCCESS && !mover_is_copying() && !captures_open())
		blocks_reap(true);
	return result;
}

/* Try once to allocate, inside the gate.  */
static CUresult allocate(void *real, CUdeviceptr *address, size_t size)
{
	bool backed = address && size >= BACKED_FROM_BYTES && shim_is_on() && !driver_allocates_by_another();
	GATE_PASS(pass);
	CUresult result = enter_to_allocate(&pass, "cuMemAlloc");

	if (result != CUDA_SUCCESS)
		return result;
	if (backed) {
		result = block_allocate(size, address);
		if (result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY)
			return result;
	}
	result = ((CUresult(*)(CUdeviceptr *, size_t))real)(address, size);
	if (result == CUDA_SUCCESS && address)
		unmovable_add(UNMOVABLE_POINTER, *address,
			  size >= BACKED_FROM_BYTES ? AFFINODE_UNMOVABLE_UNBACKED : AFFINODE_UNMOVABLE_SMALL, current_context(),
			  size);
	return result;
}

/* Round up to whole pages, the driver's unit: less than a page could be granted again and again, and never fit.  */
static uint64_t whole_pages(const struct device *device, uint64_t bytes)
{
	uint64_t page = device->granularity;

	return page ? (bytes + page - 1) / page * page : bytes;
}

/* Return whether a library between the shim and the driver refuses memory that the GPU has: that is its limit, which no wait
 * changes.  */
static bool is_refused_by_another(uint64_t bytes)
{
	CUresult (*get_info)(size_t *, size_t *) = NULL;
	void *handle = library_handle(&driver_library), *found;
	size_t unused = 0, total;
	GATE_PASS(pass);

	if (!handle || !driver_has_company())
		return false;
	found = resolve_by_libc(handle, "cuMemGetInfo_v2");
	memcpy(&get_info, &found, sizeof(get_info));
	return get_info && gate_enter_as(&pass, AFFINODE_CLASS_ALLOC, "cuMemGetInfo") == CUDA_SUCCESS &&
	       get_info(&unused, &total) == CUDA_SUCCESS && unused >= bytes;
}

CUresult after_out_of_memory(uint64_t bytes, struct room_wait *wait)
{
	const struct context *context = current_context();
	const struct device *device = context ? context->device : NULL;

	/* What no GPU of this kind has is not waited for.  */
	if (!device || (device->total_bytes && bytes > device->total_bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!gpu_lock_in_the_way && is_refused_by_another(whole_pages(device, bytes))) /* the memory may have come free since: once more */
		return wait->refused++ ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
	return ask_for_room(device, whole_pages(device, bytes), wait);
}

ROOM_HOOK(cuMemAlloc, (CUdeviceptr * address, size_t size), (address, size), allocate, after_out_of_memory(size, &wait))

static CUresult allocate_pitch(void *real, CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
			       unsigned int element_size)
{
	bool may_be_backed = shim_is_on() && !driver_allocates_by_another();
	GATE_PASS(pass);
	CUresult result = enter_to_allocate(&pass, "cuMemAllocPitch");
	size_t row = (width + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES;

	if (result != CUDA_SUCCESS)
		return result;
	if (address && pitch && width && row >= width && height <= SIZE_MAX / row &&
	    row * height >= BACKED_FROM_BYTES && may_be_backed &&
	    (element_size == 4 || element_size == 8 || element_size == 16)) {
		result = block_allocate(row * height, address);
		if (result == CUDA_SUCCESS)
			*pitch = row;
		if (result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY)
			return result;
	}
	result = ((CUresult(*)(CUdeviceptr *, size_t *, size_t, size_t, unsigned int))real)(address, pitch, width,
											    height, element_size);
	if (result == CUDA_SUCCESS && address && pitch)
		unmovable_add(UNMOVABLE_POINTER, *address, AFFINODE_UNMOVABLE_SMALL, current_context(), *pitch * height);
	return result;
}

ROOM_HOOK(cuMemAllocPitch,
	  (CUdeviceptr * address, size_t *pitch, size_t width, size_t height, unsigned int element_size),
	  (address, pitch, width, height, element_size), allocate_pitch, after_out_of_memory(width * height, &wait))

static CUresult on_cuMemFree(void *real, CUdeviceptr address)
{
	if (address && block_free(address))
		return CUDA_SUCCESS;
	/* Forgotten first: once the driver has it back, another thread may be given the same address.  */
	unmovable_remove(UNMOVABLE_POINTER, address);
	managed_forget(address);
	return ((CUresult(*)(CUdeviceptr))real)(address);
}
HOOK(cuMemFree, (CUdeviceptr address), address)

static CUresult allocate_managed(void *real, CUdeviceptr *address, size_t size, unsigned int flags)
{
	GATE_PASS(pass);
	CUresult result = gate_enter_as(&pass, AFFINODE_CLASS_ALLOC, "cuMemAllocManaged");

	if (result != CUDA_SUCCESS)
		return result;
	result = ((CUresult(*)(CUdeviceptr *, size_t, unsigned int))real)(address, size, flags);
	if (result == CUDA_SUCCESS && address) {
		const struct context *context = current_context();

		unmovable_add(UNMOVABLE_POINTER, *address, AFFINODE_UNMOVABLE_MANAGED, context, size);
		if (context)
			managed_note(*address, size, context->device);
	}
	return result;
}

ROOM_HOOK(cuMemAllocManaged, (CUdeviceptr * address, size_t size, unsigned int flags), (address, size, flags),
	  allocate_managed, after_out_of_memory(size, &wait))

/* Return the bytes of an element of a CUarray_format; block-compressed and multi-plane formats count as one.  */
static size_t format_bytes(int format)
{
	switch (format) {
	case 0x02: /* UNSIGNED_INT16 */
	case 0x09: /* SIGNED_INT16 */
	case 0x10: /* HALF */
		return 2;
	case 0x03: /* UNSIGNED_INT32 */
	case 0x0a: /* SIGNED_INT32 */
	case 0x20: /* FLOAT */
		return 4;
	default:
		return 1;
	}
}

static uint64_t at_least_one(size_t n)
{
	return n ? n : 1;
}

static CUresult note_array(CUresult result, const CUarray *array, uint64_t elements, int format)
{
	if (result == CUDA_SUCCESS && array)
		unmovable_add(UNMOVABLE_ARRAY, (uintptr_t)*array, AFFINODE_UNMOVABLE_ARRAY, current_context(),
			      elements * format_bytes(format));
	return result;
}

GATED_HOOK(cuArrayCreate, ALLOC, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *d), (array, d), NOTHING_BEFORE,
	   !d ? called
	      : note_array(called, array, at_least_one(d->Width) * at_least_one(d->Height) * d->NumChannels, d->Format))
GATED_HOOK(cuArray3DCreate, ALLOC, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *d), (array, d), NOTHING_BEFORE,
	   !d ? called
	      : note_array(called, array,
			   at_least_one(d->Width) * at_least_one(d->Height) * at_least_one(d->Depth) * d->NumChannels,
			   d->Format))

static CUresult on_cuArrayDestroy(void *real, CUarray array)
{
	unmovable_remove(UNMOVABLE_ARRAY, (uintptr_t)array);
	return ((CUresult(*)(CUarray))real)(array);
}
HOOK(cuArrayDestroy, (CUarray array), array)
