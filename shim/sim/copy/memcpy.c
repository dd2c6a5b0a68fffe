/* cuMemcpy*, one-dimensional.  */
#include "copy/copy.h"
#include "driver/api.h"
#include "stream/capture.h"

/* Sides without a context are the stream's.  */
static CUresult transfer(CUcontext context, CUstream handle, struct copy shape, bool to_device, bool from_device, bool wait)
{
	CUstream stream;
	CUresult result = stream_of(context, handle, &stream);

	if (result == CUDA_SUCCESS && wait)
		result = capture_forbids(stream);
	if (result != CUDA_SUCCESS || !shape.size)
		return result;
	if (!shape.to.context)
		shape.to.context = shape.from.context = stream->context;
	result = side_locate(&shape.to, to_device, shape.size);
	if (result == CUDA_SUCCESS)
		result = side_locate(&shape.from, from_device, shape.size);
	if (!wait && (side_straddles(shape.to.address, shape.size) || side_straddles(shape.from.address, shape.size)))
		result = CUDA_ERROR_INVALID_VALUE;
	return result == CUDA_SUCCESS ? copy_submit(stream, &shape, wait) : result;
}

#define HOST(pointer) ((uint64_t)(uintptr_t)(pointer))

/* Each copy comes in four forms: waiting or asynchronous, on the legacy or on the thread's default stream.  */
#define COPY(base, symbol, to_type, from_type, to_device, from_device)                                                \
	static CUresult base##_(const char *called, to_type to, from_type from, size_t size, CUstream stream, bool wait) \
	{                                                                                                             \
		struct copy shape = {.to.address = HOST(to), .from.address = HOST(from), .size = size};               \
                                                                                                                      \
		ENTER_CONTEXT(called, context);                                                                       \
		return transfer(context, stream, shape, to_device, from_device, wait);                                \
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

COPY(cuMemcpyHtoD, cuMemcpyHtoD_v2, CUdeviceptr, const void *, true, false)
COPY_ASYNC(cuMemcpyHtoD, cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *)
COPY(cuMemcpyDtoH, cuMemcpyDtoH_v2, void *, CUdeviceptr, false, true)
COPY_ASYNC(cuMemcpyDtoH, cuMemcpyDtoHAsync_v2, void *, CUdeviceptr)
COPY(cuMemcpyDtoD, cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr, true, true)
COPY_ASYNC(cuMemcpyDtoD, cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr)

static CUresult copy_peer(const char *called, CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
			  CUcontext from_context, size_t size, CUstream stream)
{
	struct copy shape = {.to = {.address = to, .context = to_context}, .from = {.address = from, .context = from_context},
			     .size = size};

	ENTER_CONTEXT(called, context);
	if (!context_is(to_context) || !context_is(from_context))
		return CUDA_ERROR_INVALID_CONTEXT;
	return transfer(context, stream, shape, true, true, true);
}

SIM_API CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size)
{
	return copy_peer("cuMemcpyPeer", to, to_context, from, from_context, size, CU_STREAM_LEGACY);
}

SIM_API CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
				   size_t size)
{
	return copy_peer("cuMemcpyPeer", to, to_context, from, from_context, size, CU_STREAM_PER_THREAD);
}
