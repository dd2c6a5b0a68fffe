/* A green context that is destroyed keeps the process from nothing: what was made in it is the primary context's, is moved
 * there, and goes with that one. And a context that is detached for the last time is gone, no sooner.  */
#include "harness.h"

#define BYTES MiB(4)
#define DEFAULT_STREAM 1u
#define NON_BLOCKING 1u

static CUresult (*create)(void **, void *, CUdevice, unsigned);
static CUresult (*destroy)(void *);
static CUresult (*context_of)(CUcontext *, void *);
static CUresult (*create_stream)(CUstream *, void *, unsigned, int);
static CUresult (*attach)(CUcontext *, unsigned);
static CUresult (*detach)(CUcontext);

static void find_functions(void)
{
	*(void **)&create = cuda_symbol("cuGreenCtxCreate");
	*(void **)&destroy = cuda_symbol("cuGreenCtxDestroy");
	*(void **)&context_of = cuda_symbol("cuCtxFromGreenCtx");
	*(void **)&create_stream = cuda_symbol("cuGreenCtxStreamCreate");
	*(void **)&attach = cuda_symbol("cuCtxAttach");
	*(void **)&detach = cuda_symbol("cuCtxDetach");
}

static void *make(void)
{
	void *green;

	CHECK_EQUAL(create(&green, NULL, 0, DEFAULT_STREAM), CUDA_SUCCESS);
	return green;
}

/* A block with a pattern, made and written in the green context.  */
static CUdeviceptr block_in(void *green, uint32_t seed)
{
	CUcontext context;
	CUdeviceptr block;
	CUstream stream;

	CHECK_EQUAL(context_of(&context, green), CUDA_SUCCESS);
	CUDA(CtxSetCurrent(context));
	CUDA(MemAlloc(&block, BYTES));
	CHECK_EQUAL(create_stream(&stream, green, NON_BLOCKING, 0), CUDA_SUCCESS);
	CHECK_EQUAL(launch_pattern(stream, block, BYTES, seed), CUDA_SUCCESS);
	CUDA(StreamSynchronize(stream));
	CUDA(StreamDestroy(stream));
	CUDA(CtxSetCurrent(cuda_context));
	return block;
}

static uint64_t parked_bytes(void)
{
	return page_read().gpus[0].parked_bytes;
}

static void goes_and_comes_back(uint64_t bytes)
{
	controller_park();
	PAGE_UNTIL(page.gpus[0].parked_bytes == bytes);
	CHECK_RESUMES();
}

static void green_contexts(CUdeviceptr anchor)
{
	void *green = make();
	CUdeviceptr first = block_in(green, 2), second;

	goes_and_comes_back(2 * BYTES);
	CHECK_EQUAL(destroy(green), CUDA_SUCCESS);
	goes_and_comes_back(2 * BYTES);

	green = make();
	second = block_in(green, 3);
	controller_park();
	CHECK_EQUAL(destroy(green), CUDA_SUCCESS); /* it waits for no GPU */
	CHECK_EQUAL(parked_bytes(), 3 * BYTES);
	CHECK_EQUAL(page_read().want, 0);
	CHECK_RESUMES();
	goes_and_comes_back(3 * BYTES);
	CHECK(holds_pattern(anchor, BYTES, 1, 0));
	CHECK(holds_pattern(first, BYTES, 2, 0));
	CHECK(holds_pattern(second, BYTES, 3, 0));
	CUDA(MemFree(first));
	CUDA(MemFree(second));
}

static void detached_contexts(CUdeviceptr anchor)
{
	CUcontext context, same;
	CUdeviceptr block;
	uint32_t word = 7;

	CUDA(CtxCreate(&context, 0, 0));
	CHECK_EQUAL(attach(&same, 0), CUDA_SUCCESS);
	CHECK(same == context);
	CUDA(MemAlloc(&block, BYTES));
	CUDA(MemsetD32(block, 5, BYTES / 4));
	CUDA(CtxSynchronize());
	CHECK_EQUAL(detach(context), CUDA_SUCCESS);
	goes_and_comes_back(2 * BYTES);
	CUDA(MemcpyDtoH(&word, block, sizeof(word)));
	CHECK_EQUAL(word, 5);
	CHECK_EQUAL(detach(context), CUDA_SUCCESS);
	CUDA(CtxSetCurrent(cuda_context));
	PAGE_UNTIL(page.gpus[0].resident_bytes == BYTES);
	goes_and_comes_back(BYTES);
	CHECK(holds_pattern(anchor, BYTES, 1, 0));
}

/* The green context is the last to use the primary one, which takes everything along.  */
static void the_last_reference(void)
{
	void *green = make();

	block_in(green, 4);
	CUDA(DevicePrimaryCtxRelease(0));
	goes_and_comes_back(2 * BYTES);
	CHECK_EQUAL(destroy(green), CUDA_SUCCESS);
	PAGE_UNTIL(page.gpus[0].resident_bytes == 0 && page.gpus[0].parked_bytes == 0);
}

int main(int argc, char **argv)
{
	CUdeviceptr anchor;

	cuda_begin(argc, argv, 60);
	find_functions();
	anchor = cuda_block(BYTES, 1);
	green_contexts(anchor);
	detached_contexts(anchor);
	the_last_reference();
	return 0;
}
