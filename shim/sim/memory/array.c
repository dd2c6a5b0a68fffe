/* cuArrayCreate and what belongs to it. Nothing samples or copies them here; they hold memory.  */

#include "driver/api.h"
#include "stream/capture.h"
#include "memory/memory.h"
#include "stream/stream.h"

struct CUarray_st {
	struct object object;
	CUcontext context;
	uint64_t context_id;
	CUdeviceptr memory;
};

static unsigned format_bytes(int format)
{
	switch (format) {
	case 0x01:
	case 0x08:
		return 1;
	case 0x02:
	case 0x09:
	case 0x10:
		return 2;
	case 0x03:
	case 0x0a:
	case 0x20:
		return 4;
	default:
		return 0;
	}
}

static CUresult create(CUarray *made, const CUDA_ARRAY3D_DESCRIPTOR *what)
{
	uint64_t rows = what->Height ? what->Height : 1, planes = what->Depth ? what->Depth : 1;
	unsigned bytes = format_bytes(what->Format) * what->NumChannels;
	CUcontext context;
	CUarray array;
	uint64_t size;
	CUresult result = context_current(&context);

	if (result == CUDA_SUCCESS)
		result = capture_unsafe();
	if (result != CUDA_SUCCESS)
		return result;
	if (!made || !what->Width || !bytes || (what->NumChannels != 1 && what->NumChannels != 2 && what->NumChannels != 4))
		return CUDA_ERROR_INVALID_VALUE;
	size = (what->Width * bytes + 511) / 512 * 512 * rows * planes;
	array = object_new(OBJECT_ARRAY, sizeof(*array));
	if (!array)
		return CUDA_ERROR_OUT_OF_MEMORY;
	array->context = context;
	array->context_id = context->id;
	result = memory_new_block(context, RANGE_DEVICE, size, NULL, &array->memory);
	if (result != CUDA_SUCCESS)
		object_free(OBJECT_ARRAY, array);
	else
		*made = array;
	return result;
}

SIM_API CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *given)
{
	CUDA_ARRAY3D_DESCRIPTOR what;

	ENTER("cuArrayCreate");
	if (!given)
		return CUDA_ERROR_INVALID_VALUE;
	what = (CUDA_ARRAY3D_DESCRIPTOR){given->Width, given->Height, 0, given->Format, given->NumChannels, 0};
	return create(array, &what);
}

SIM_API CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *given)
{
	ENTER("cuArray3DCreate");
	return given ? create(array, given) : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuArrayDestroy(CUarray array)
{
	struct range *range;

	ENTER("cuArrayDestroy");
	if (!object_is(array, OBJECT_ARRAY))
		return CUDA_ERROR_INVALID_HANDLE;
	if (array->context->active && array->context->id == array->context_id) {
		streams_finish(array->context); /* else the memory went with its context */
		ranges_write();
		range = ranges_find(&memory_ranges, array->memory);
		if (range)
			memory_drop(range);
		ranges_done();
	}
	object_free(OBJECT_ARRAY, array);
	return CUDA_SUCCESS;
}
