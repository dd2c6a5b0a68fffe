/* Host functions and stream callbacks as operations.  */
#ifndef SIM_HOST_FUNCTION_H
#define SIM_HOST_FUNCTION_H

#include "stream/stream.h"

struct host_function {
	struct operation operation;
	CUDA_HOST_NODE_PARAMS what;
	CUstreamCallback callback; /* instead of what.fn */
	CUstream handle;           /* as given, for the callback */
};

struct operation *host_function_new(const CUDA_HOST_NODE_PARAMS *what);

#endif
