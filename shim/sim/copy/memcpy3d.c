/* cuMemcpy2D and cuMemcpy3D: rows and planes, between host, device and arrays.  */
#include "copy/copy.h"
#include "driver/api.h"
#include "stream/capture.h"
#include "memory/memory.h"

struct given_side {
	int type;
	const void *host;
	CUdeviceptr device;
	CUarray array;
	size_t pitch, height, x, y, z;
};

static CUresult locate(const struct given_side *given, const struct copy *shape, struct side *side)
{
	enum side_kind kind = given->type == CU_MEMORYTYPE_UNIFIED ? SIDE_ANY : SIDE_DEVICE;
	uint64_t base = given->device;

	side->pitch = given->pitch ? given->pitch : shape->width;
	side->slice = side->pitch * (given->height ? given->height : shape->height);
	if (given->type == CU_MEMORYTYPE_HOST) {
		kind = SIDE_ANY;
		base = (uintptr_t)given->host;
	} else if (given->type == CU_MEMORYTYPE_ARRAY) {
		if (!array_layout(given->array, &base, &side->pitch, &side->slice))
			return CUDA_ERROR_INVALID_HANDLE;
	} else if (given->type != CU_MEMORYTYPE_DEVICE && given->type != CU_MEMORYTYPE_UNIFIED) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (shape->height > 1 && side->pitch < shape->width)
		return CUDA_ERROR_INVALID_VALUE;
	side->address = base + given->z * side->slice + given->y * side->pitch + given->x;
	return side_locate(side, kind, side_extent(side, shape));
}

static CUresult copy_from_3d(CUcontext context, const CUDA_MEMCPY3D *g, struct copy *shape)
{
	struct given_side to, from;
	CUresult result;

	if (!g || g->srcLOD || g->dstLOD)
		return CUDA_ERROR_INVALID_VALUE;
	*shape = (struct copy){.width = g->WidthInBytes, .height = g->Height, .depth = g->Depth};
	if (!shape->width || !shape->height || !shape->depth)
		return CUDA_SUCCESS;
	to = (struct given_side){g->dstMemoryType, g->dstHost, g->dstDevice, g->dstArray, g->dstPitch, g->dstHeight,
				 g->dstXInBytes, g->dstY, g->dstZ};
	from = (struct given_side){g->srcMemoryType, g->srcHost, g->srcDevice, g->srcArray, g->srcPitch, g->srcHeight,
				   g->srcXInBytes, g->srcY, g->srcZ};
	shape->to.context = shape->from.context = context;
	result = locate(&to, shape, &shape->to);
	return result == CUDA_SUCCESS ? locate(&from, shape, &shape->from) : result;
}

static CUresult copy(const char *called, const CUDA_MEMCPY3D *given, CUstream handle, bool wait)
{
	struct copy shape;
	CUstream stream;

	ENTER_CONTEXT(called, context);
	refused_ = stream_of(context, handle, &stream);
	if (refused_ == CUDA_SUCCESS && wait)
		refused_ = capture_forbids(stream);
	if (refused_ == CUDA_SUCCESS)
		refused_ = copy_from_3d(stream->context, given, &shape);
	return refused_ == CUDA_SUCCESS ? copy_submit(stream, &shape, wait) : refused_;
}

static CUresult copy_2d(const char *called, const CUDA_MEMCPY2D *g, CUstream stream, bool wait)
{
	CUDA_MEMCPY3D given;

	if (!g)
		return CUDA_ERROR_INVALID_VALUE;
	given = (CUDA_MEMCPY3D){
		.srcXInBytes = g->srcXInBytes, .srcY = g->srcY, .srcMemoryType = g->srcMemoryType,
		.srcHost = g->srcHost, .srcDevice = g->srcDevice, .srcArray = g->srcArray, .srcPitch = g->srcPitch,
		.dstXInBytes = g->dstXInBytes, .dstY = g->dstY, .dstMemoryType = g->dstMemoryType,
		.dstHost = g->dstHost, .dstDevice = g->dstDevice, .dstArray = g->dstArray, .dstPitch = g->dstPitch,
		.WidthInBytes = g->WidthInBytes, .Height = g->Height, .Depth = 1,
	};
	return copy(called, &given, stream, wait);
}

#define COPY_2D(base, symbol)                                                                      \
	SIM_API CUresult symbol(const CUDA_MEMCPY2D *given)                                        \
	{                                                                                          \
		return copy_2d(#base, given, CU_STREAM_LEGACY, true);                              \
	}                                                                                          \
	SIM_API CUresult symbol##_ptds(const CUDA_MEMCPY2D *given)                                 \
	{                                                                                          \
		return copy_2d(#base, given, CU_STREAM_PER_THREAD, true);                          \
	}

#define COPY_3D(base, symbol)                                                                      \
	SIM_API CUresult symbol(const CUDA_MEMCPY3D *given)                                        \
	{                                                                                          \
		return copy(#base, given, CU_STREAM_LEGACY, true);                                 \
	}                                                                                          \
	SIM_API CUresult symbol##_ptds(const CUDA_MEMCPY3D *given)                                 \
	{                                                                                          \
		return copy(#base, given, CU_STREAM_PER_THREAD, true);                             \
	}

#define COPY_ASYNC(base, symbol, type, call)                                                       \
	SIM_API CUresult symbol(const type *given, CUstream stream)                                \
	{                                                                                          \
		return call;                                                                       \
	}                                                                                          \
	SIM_API CUresult symbol##_ptsz(const type *given, CUstream stream)                         \
	{                                                                                          \
		stream = PER_THREAD(stream);                                                       \
		return call;                                                                       \
	}

COPY_2D(cuMemcpy2D, cuMemcpy2D_v2)
COPY_2D(cuMemcpy2DUnaligned, cuMemcpy2DUnaligned_v2)
COPY_3D(cuMemcpy3D, cuMemcpy3D_v2)
COPY_ASYNC(cuMemcpy2D, cuMemcpy2DAsync_v2, CUDA_MEMCPY2D, copy_2d("cuMemcpy2DAsync", given, stream, false))
COPY_ASYNC(cuMemcpy3D, cuMemcpy3DAsync_v2, CUDA_MEMCPY3D, copy("cuMemcpy3DAsync", given, stream, false))
