/* cuLaunchHostFunc: run by the stream's thread, which may not call the driver meanwhile.  */
#include "driver/api.h"
#include "stream/stream.h"

struct host_function {
	struct operation operation;
	CUhostFn function;
	void *data;
};

static CUresult run(struct operation *operation, CUstream stream)
{
	struct host_function *function = (struct host_function *)operation;

	current_push(stream->context); /* a query is allowed, and has no context of its own here */
	api_in_callback(true);
	function->function(function->data);
	api_in_callback(false);
	current_forget(stream->context);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data)
{
	struct host_function *operation;
	CUstream stream;

	ENTER_CONTEXT("cuLaunchHostFunc", context);
	refused_ = function ? stream_of(context, handle, &stream) : CUDA_ERROR_INVALID_VALUE;
	if (refused_ != CUDA_SUCCESS)
		return refused_;
	operation = operation_new(sizeof(*operation), run);
	if (!operation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	operation->function = function;
	operation->data = data;
	return stream_submit(stream, &operation->operation, NULL);
}

SIM_API CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void *data)
{
	return cuLaunchHostFunc(PER_THREAD(stream), function, data);
}
