/* cuMemset*.  */
#include "copy/copy.h"
#include "driver/api.h"
#include "stream/capture.h"

static CUresult fill(const char *called, CUdeviceptr to, size_t pitch, unsigned value, unsigned element, size_t width,
		     size_t height, CUstream handle, bool default_stream)
{
	const struct fill what = {.to = to, .pitch = pitch, .value = value, .element = element, .width = width, .height = height};
	CUstream stream;
	bool valid;

	ENTER_CONTEXT(called, context);
	refused_ = stream_of(context, handle, &stream);
	if (refused_ == CUDA_SUCCESS && default_stream)
		refused_ = capture_forbids(stream);
	if (refused_ != CUDA_SUCCESS || !width || !height)
		return refused_;
	if (to % element || (height > 1 && (pitch % element || pitch < width * element)))
		return CUDA_ERROR_INVALID_VALUE;
	ranges_read();
	valid = ranges_accessible(stream->context, to, (height - 1) * pitch + width * element, true);
	ranges_done();
	if (!valid)
		return CUDA_ERROR_INVALID_VALUE;
	return fill_submit(stream, &what);
}

/* Fills do not wait: the plain ones too are only ordered in the default stream.  */
#define FILL(base, type, element)                                                                                     \
	SIM_API CUresult base##_v2(CUdeviceptr to, type value, size_t count)                                          \
	{                                                                                                             \
		return fill(#base, to, 0, value, element, count, 1, CU_STREAM_LEGACY, true);                          \
	}                                                                                                             \
	SIM_API CUresult base##_v2_ptds(CUdeviceptr to, type value, size_t count)                                     \
	{                                                                                                             \
		return fill(#base, to, 0, value, element, count, 1, CU_STREAM_PER_THREAD, true);                      \
	}                                                                                                             \
	SIM_API CUresult base##Async(CUdeviceptr to, type value, size_t count, CUstream stream)                       \
	{                                                                                                             \
		return fill(#base "Async", to, 0, value, element, count, 1, stream, false);                           \
	}                                                                                                             \
	SIM_API CUresult base##Async_ptsz(CUdeviceptr to, type value, size_t count, CUstream stream)                  \
	{                                                                                                             \
		return fill(#base "Async", to, 0, value, element, count, 1, PER_THREAD(stream), false);               \
	}

#define FILL_2D(base, type, element)                                                                                  \
	SIM_API CUresult base##_v2(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height)             \
	{                                                                                                             \
		return fill(#base, to, pitch, value, element, width, height, CU_STREAM_LEGACY, true);                 \
	}                                                                                                             \
	SIM_API CUresult base##_v2_ptds(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height)        \
	{                                                                                                             \
		return fill(#base, to, pitch, value, element, width, height, CU_STREAM_PER_THREAD, true);             \
	}                                                                                                             \
	SIM_API CUresult base##Async(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height,           \
				     CUstream stream)                                                                 \
	{                                                                                                             \
		return fill(#base "Async", to, pitch, value, element, width, height, stream, false);                  \
	}                                                                                                             \
	SIM_API CUresult base##Async_ptsz(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height,      \
					  CUstream stream)                                                            \
	{                                                                                                             \
		return fill(#base "Async", to, pitch, value, element, width, height, PER_THREAD(stream), false);      \
	}

FILL(cuMemsetD8, unsigned char, 1)
FILL(cuMemsetD16, unsigned short, 2)
FILL(cuMemsetD32, unsigned int, 4)
FILL_2D(cuMemsetD2D8, unsigned char, 1)
FILL_2D(cuMemsetD2D16, unsigned short, 2)
FILL_2D(cuMemsetD2D32, unsigned int, 4)
