/* cuMemset*.  */
#include "copy/copy.h"
#include "driver/api.h"
#include "stream/capture.h"

static CUresult fill(const char *called, CUdeviceptr to, unsigned value, unsigned element, size_t count, CUstream handle,
		     bool default_stream)
{
	const struct fill what = {.to = to, .value = value, .element = element, .count = count};
	CUstream stream;
	bool valid;

	ENTER_CONTEXT(called, context);
	refused_ = stream_of(context, handle, &stream);
	if (refused_ == CUDA_SUCCESS && default_stream)
		refused_ = capture_forbids(stream);
	if (refused_ != CUDA_SUCCESS || !count)
		return refused_;
	if (to % element)
		return CUDA_ERROR_INVALID_VALUE;
	ranges_read();
	valid = ranges_accessible(stream->context, to, count * element, true);
	ranges_done();
	if (!valid)
		return CUDA_ERROR_INVALID_VALUE;
	return fill_submit(stream, &what);
}

/* Fills do not wait: the plain ones too are only ordered in the default stream.  */
#define FILL(base, type, element)                                                                                     \
	SIM_API CUresult base##_v2(CUdeviceptr to, type value, size_t count)                                          \
	{                                                                                                             \
		return fill(#base, to, value, element, count, CU_STREAM_LEGACY, true);                                \
	}                                                                                                             \
	SIM_API CUresult base##_v2_ptds(CUdeviceptr to, type value, size_t count)                                     \
	{                                                                                                             \
		return fill(#base, to, value, element, count, CU_STREAM_PER_THREAD, true);                            \
	}                                                                                                             \
	SIM_API CUresult base##Async(CUdeviceptr to, type value, size_t count, CUstream stream)                       \
	{                                                                                                             \
		return fill(#base "Async", to, value, element, count, stream, false);                                 \
	}                                                                                                             \
	SIM_API CUresult base##Async_ptsz(CUdeviceptr to, type value, size_t count, CUstream stream)                  \
	{                                                                                                             \
		return fill(#base "Async", to, value, element, count, PER_THREAD(stream), false);                     \
	}

FILL(cuMemsetD8, unsigned char, 1)
FILL(cuMemsetD16, unsigned short, 2)
FILL(cuMemsetD32, unsigned int, 4)
