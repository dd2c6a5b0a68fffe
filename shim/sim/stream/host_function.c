/* cuLaunchHostFunc and cuStreamAddCallback: run by the stream's thread, which may not call the driver meanwhile.  */
#include "stream/host_function.h"

#include "driver/api.h"
#include "driver/streams_default.h"
#include "graph/capture.h"

static CUresult run(struct operation *operation, CUstream stream)
{
	struct host_function *function = (struct host_function *)operation;

	current_push(stream->context); /* a query is allowed, and has no context of its own here */
	api_in_callback(true);
	if (function->callback)
		function->callback(function->handle, stream->context->sticky, function->what.userData);
	else
		function->what.fn(function->what.userData);
	api_in_callback(false);
	current_forget(stream->context);
	return CUDA_SUCCESS;
}

struct operation *host_function_new(const CUDA_HOST_NODE_PARAMS *what)
{
	struct host_function *function = operation_new(sizeof(*function), CU_GRAPH_NODE_TYPE_HOST, run);

	if (!function)
		return NULL;
	function->what = *what;
	return &function->operation;
}

static CUresult submit(CUstream handle, const CUDA_HOST_NODE_PARAMS *what, CUstreamCallback callback)
{
	struct operation *operation;
	CUcontext context;
	CUstream stream;
	CUresult result = context_current(&context);

	if (result == CUDA_SUCCESS)
		result = what->fn || callback ? stream_of(context, handle, &stream) : CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS && callback) /* a callback cannot be captured */
		result = capture_forbids(stream);
	if (result != CUDA_SUCCESS)
		return result;
	operation = host_function_new(what);
	if (!operation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	((struct host_function *)operation)->callback = callback;
	((struct host_function *)operation)->handle = handle;
	return stream_submit(stream, operation, NULL);
}

SIM_API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data)
{
	CUDA_HOST_NODE_PARAMS what = {function, data};

	ENTER("cuLaunchHostFunc");
	return submit(stream, &what, NULL);
}

SIM_API CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void *data)
{
	return cuLaunchHostFunc(PER_THREAD(stream), function, data);
}

SIM_API CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data, unsigned int flags)
{
	CUDA_HOST_NODE_PARAMS what = {NULL, data};

	ENTER("cuStreamAddCallback");
	return flags || !callback ? CUDA_ERROR_INVALID_VALUE : submit(stream, &what, callback);
}

SIM_API CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback, void *data, unsigned int flags)
{
	return cuStreamAddCallback(PER_THREAD(stream), callback, data, flags);
}
