/* cuLaunchHostFunc and cuStreamAddCallback: run by the stream's thread, which may not call the driver meanwhile.  */
#include "driver/api.h"
#include "stream/capture.h"
#include "stream/stream.h"

struct host_function {
	struct operation operation;
	CUhostFn function;
	CUstreamCallback callback; /* instead of the function */
	CUstream handle;           /* as given, for the callback */
	void *data;
};

static CUresult run(struct operation *operation, CUstream stream)
{
	struct host_function *function = (struct host_function *)operation;

	current_push(stream->context); /* a query is allowed, and has no context of its own here */
	api_in_callback(true);
	if (function->callback)
		function->callback(function->handle, stream->context->sticky, function->data);
	else
		function->function(function->data);
	api_in_callback(false);
	current_forget(stream->context);
	return CUDA_SUCCESS;
}

static CUresult submit(CUstream handle, CUhostFn function, CUstreamCallback callback, void *data)
{
	struct host_function *operation;
	CUcontext context;
	CUstream stream;
	CUresult result = context_current(&context);

	if (result == CUDA_SUCCESS)
		result = function || callback ? stream_of(context, handle, &stream) : CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS && callback) /* a callback cannot be captured */
		result = capture_forbids(stream);
	if (result != CUDA_SUCCESS)
		return result;
	operation = operation_new(sizeof(*operation), run);
	if (!operation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	operation->function = function;
	operation->callback = callback;
	operation->handle = handle;
	operation->data = data;
	return stream_submit(stream, &operation->operation, NULL);
}

SIM_API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data)
{
	ENTER("cuLaunchHostFunc");
	return submit(stream, function, NULL, data);
}

SIM_API CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void *data)
{
	return cuLaunchHostFunc(PER_THREAD(stream), function, data);
}

SIM_API CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data, unsigned int flags)
{
	ENTER("cuStreamAddCallback");
	return flags || !callback ? CUDA_ERROR_INVALID_VALUE : submit(stream, NULL, callback, data);
}

SIM_API CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback, void *data, unsigned int flags)
{
	return cuStreamAddCallback(PER_THREAD(stream), callback, data, flags);
}
