/* Launching kernels.  */
#include <string.h>

#include "driver/api.h"
#include "stream/capture.h"
#include "kernel/module.h"

#define LAUNCH_PARAM_END ((void *)0)
#define LAUNCH_PARAM_BUFFER_POINTER ((void *)1)
#define LAUNCH_PARAM_BUFFER_SIZE ((void *)2)

/* As the program asks for it.  */
struct launch_order {
	CUfunction func;
	unsigned int gridDimX, gridDimY, gridDimZ;
	unsigned int blockDimX, blockDimY, blockDimZ;
	unsigned int sharedMemBytes;
	void **kernelParams;
	void **extra;
};

struct launch {
	struct operation operation;
	const struct kernel *kernel;
	uint64_t parameters[KERNEL_PARAMETERS];
};

static CUresult run_launch(struct operation *operation, CUstream stream)
{
	struct launch *launch = (struct launch *)operation;

	return launch->kernel->run(stream, launch->parameters);
}

/* The packed form: parameters at their natural alignment in one buffer.  */
static CUresult read_packed(struct launch *launch, void **extra)
{
	const char *buffer = NULL;
	size_t size = 0, at = 0;

	for (; *extra != LAUNCH_PARAM_END; extra += 2) {
		if (extra[0] == LAUNCH_PARAM_BUFFER_POINTER)
			buffer = extra[1];
		else if (extra[0] == LAUNCH_PARAM_BUFFER_SIZE)
			size = *(size_t *)extra[1];
		else
			return CUDA_ERROR_INVALID_VALUE;
	}
	for (unsigned i = 0; i < launch->kernel->parameter_count; i++) {
		unsigned bytes = launch->kernel->parameter_bytes[i];

		at = (at + bytes - 1) / bytes * bytes;
		if (!buffer || at + bytes > size)
			return CUDA_ERROR_INVALID_VALUE;
		memcpy(&launch->parameters[i], buffer + at, bytes);
		at += bytes;
	}
	return CUDA_SUCCESS;
}

static CUresult read_parameters(struct launch *launch, void **parameters, void **extra)
{
	if (!parameters && extra)
		return read_packed(launch, extra);
	if (!parameters || extra)
		return CUDA_ERROR_INVALID_VALUE; /* every kernel here has parameters; both forms at once are refused */
	for (unsigned i = 0; i < launch->kernel->parameter_count; i++) {
		if (!parameters[i])
			return CUDA_ERROR_INVALID_VALUE;
		memcpy(&launch->parameters[i], parameters[i], launch->kernel->parameter_bytes[i]);
	}
	return CUDA_SUCCESS;
}

static bool shape_valid(const struct launch_order *shape)
{
	uint64_t threads = (uint64_t)shape->blockDimX * shape->blockDimY * shape->blockDimZ;

	return shape->gridDimX && shape->gridDimY && shape->gridDimZ && threads && threads <= 1024 &&
	       shape->gridDimX <= 0x7fffffffu && shape->gridDimY <= 65535 && shape->gridDimZ <= 65535 &&
	       shape->blockDimZ <= 64 && shape->sharedMemBytes <= 232448;
}

/* Reads the parameters now.  */
static CUresult launch_new(const struct launch_order *given, struct operation **made)
{
	CUfunction function = given->func;
	struct launch *launch;
	CUresult result;

	if (!object_is(function, OBJECT_FUNCTION))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!shape_valid(given))
		return CUDA_ERROR_INVALID_VALUE;
	launch = operation_new(sizeof(*launch), run_launch);
	if (!launch)
		return CUDA_ERROR_OUT_OF_MEMORY;
	launch->operation.kernels = true;
	launch->kernel = function->kernel;
	result = read_parameters(launch, given->kernelParams, given->extra);
	if (result != CUDA_SUCCESS) {
		operation_release(&launch->operation);
		return result;
	}
	*made = &launch->operation;
	return CUDA_SUCCESS;
}

static CUresult launch(const char *called, const struct launch_order *given, CUstream handle)
{
	struct operation *operation;
	CUstream stream;

	ENTER_CONTEXT(called, context);
	refused_ = stream_of(context, handle, &stream);
	if (refused_ == CUDA_SUCCESS)
		refused_ = launch_new(given, &operation);
	return refused_ == CUDA_SUCCESS ? stream_submit(stream, operation, NULL) : refused_;
}

#define LAUNCH_PARAMETERS                                                                                             \
	CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,     \
		unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream, void **parameters
#define LAUNCH_SHAPE(extra)                                                                                           \
	{function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, parameters, extra}

SIM_API CUresult cuLaunchKernel(LAUNCH_PARAMETERS, void **extra)
{
	struct launch_order given = LAUNCH_SHAPE(extra);

	return launch("cuLaunchKernel", &given, stream);
}

SIM_API CUresult cuLaunchKernel_ptsz(LAUNCH_PARAMETERS, void **extra)
{
	struct launch_order given = LAUNCH_SHAPE(extra);

	return launch("cuLaunchKernel", &given, PER_THREAD(stream));
}
