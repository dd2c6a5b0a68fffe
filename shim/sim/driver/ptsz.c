/* The rest of the _ptsz entry points: the same calls, with the thread's own default stream.  */
#include "driver/api.h"
#include "stream/stream.h"

#define SAME(name, parameters, arguments)                      \
	CUresult name parameters;                              \
	SIM_API CUresult name##_ptsz parameters;               \
	SIM_API CUresult name##_ptsz parameters                \
	{                                                      \
		return name arguments;                         \
	}

SAME(cuStreamGetFlags, (CUstream stream, unsigned int *value), (PER_THREAD(stream), value))
SAME(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags), (PER_THREAD(stream), event, flags))
SAME(cuStreamQuery, (CUstream stream), (PER_THREAD(stream)))
SAME(cuStreamSynchronize, (CUstream stream), (PER_THREAD(stream)))
SAME(cuEventRecord, (CUevent event, CUstream stream), (event, PER_THREAD(stream)))
