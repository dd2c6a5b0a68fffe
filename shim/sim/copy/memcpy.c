/* cuMemcpy*, one-dimensional; the rest is in memcpy3d.c.  */
#include "copy/copy.h"
#include "driver/api.h"
#include "stream/capture.h"

struct transfer {
	uint64_t to, from, size;
	enum side_kind to_kind, from_kind;
	CUcontext to_context, from_context; /* NULL: the stream's */
};

static CUresult transfer(CUcontext context, CUstream handle, const struct transfer *what, bool wait)
{
	struct copy shape = {.width = what->size, .height = 1, .depth = 1};
	CUstream stream;
	CUresult result = stream_of(context, handle, &stream);

	if (result == CUDA_SUCCESS && wait)
		result = capture_forbids(stream);
	if (result != CUDA_SUCCESS || !what->size)
		return result;
	shape.to.address = what->to;
	shape.from.address = what->from;
	shape.to.context = what->to_context ? what->to_context : stream->context;
	shape.from.context = what->from_context ? what->from_context : stream->context;
	result = side_locate(&shape.to, what->to_kind, what->size);
	if (result == CUDA_SUCCESS)
		result = side_locate(&shape.from, what->from_kind, what->size);
	if (!wait && (side_straddles(what->to, what->size) || side_straddles(what->from, what->size)))
		result = CUDA_ERROR_INVALID_VALUE;
	return result == CUDA_SUCCESS ? copy_submit(stream, &shape, wait) : result;
}

#define HOST(pointer) ((uint64_t)(uintptr_t)(pointer))

/* Each copy comes in four forms: waiting or asynchronous, on the legacy or on the thread's default stream.  */
#define COPY(base, symbol, to_type, from_type, to_kind, from_kind)                                                    \
	static CUresult base##_(const char *called, to_type to, from_type from, size_t size, CUstream stream, bool wait) \
	{                                                                                                             \
		struct transfer what = {HOST(to), HOST(from), size, to_kind, from_kind, NULL, NULL};                  \
                                                                                                                      \
		ENTER_CONTEXT(called, context);                                                                       \
		return transfer(context, stream, &what, wait);                                                        \
	}                                                                                                             \
	SIM_API CUresult symbol(to_type to, from_type from, size_t size)                                              \
	{                                                                                                             \
		return base##_(#base, to, from, size, CU_STREAM_LEGACY, true);                                        \
	}                                                                                                             \
	SIM_API CUresult symbol##_ptds(to_type to, from_type from, size_t size)                                       \
	{                                                                                                             \
		return base##_(#base, to, from, size, CU_STREAM_PER_THREAD, true);                                    \
	}

#define COPY_ASYNC(base, symbol, to_type, from_type)                                                                  \
	SIM_API CUresult symbol(to_type to, from_type from, size_t size, CUstream stream)                             \
	{                                                                                                             \
		return base##_(#base "Async", to, from, size, stream, false);                                         \
	}                                                                                                             \
	SIM_API CUresult symbol##_ptsz(to_type to, from_type from, size_t size, CUstream stream)                      \
	{                                                                                                             \
		return base##_(#base "Async", to, from, size, PER_THREAD(stream), false);                             \
	}

COPY(cuMemcpy, cuMemcpy, CUdeviceptr, CUdeviceptr, SIDE_ANY, SIDE_ANY)
COPY_ASYNC(cuMemcpy, cuMemcpyAsync, CUdeviceptr, CUdeviceptr)
COPY(cuMemcpyHtoD, cuMemcpyHtoD_v2, CUdeviceptr, const void *, SIDE_DEVICE, SIDE_ANY)
COPY_ASYNC(cuMemcpyHtoD, cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *)
COPY(cuMemcpyDtoH, cuMemcpyDtoH_v2, void *, CUdeviceptr, SIDE_ANY, SIDE_DEVICE)
COPY_ASYNC(cuMemcpyDtoH, cuMemcpyDtoHAsync_v2, void *, CUdeviceptr)
COPY(cuMemcpyDtoD, cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr, SIDE_DEVICE, SIDE_DEVICE)
COPY_ASYNC(cuMemcpyDtoD, cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr)

static CUresult copy_peer(const char *called, CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
			  CUcontext from_context, size_t size, CUstream stream, bool wait)
{
	struct transfer what = {to, from, size, SIDE_DEVICE, SIDE_DEVICE, to_context, from_context};

	ENTER_CONTEXT(called, context);
	if (!context_is(to_context) || !context_is(from_context))
		return CUDA_ERROR_INVALID_CONTEXT;
	return transfer(context, stream, &what, wait);
}

SIM_API CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size)
{
	return copy_peer("cuMemcpyPeer", to, to_context, from, from_context, size, CU_STREAM_LEGACY, true);
}

SIM_API CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
				   size_t size)
{
	return copy_peer("cuMemcpyPeer", to, to_context, from, from_context, size, CU_STREAM_PER_THREAD, true);
}
