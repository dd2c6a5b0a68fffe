/* A thread that is cancelled while a call of its is in the shim takes no lock along: the others' calls go on. Each call is made
 * by a thread of which that was asked before, so that it would end at the first place where it may.  */
#include <sys/syscall.h>

#include "depth.h"

#define BYTES MiB(8)

static CUdeviceptr block;
static CUstream stream;
static CUcontext other;

static void retain(void)
{
	CUDA(DevicePrimaryCtxRetain(&other, 0));
}

static void release(void)
{
	CUDA(DevicePrimaryCtxRelease(0));
}

static void allocate(void)
{
	CUDA(MemAlloc(&block, BYTES));
}

static void share(void)
{
	CUipcMemHandle handle;

	CUDA(IpcGetMemHandle(&handle, block));
}

static void ask_size(void)
{
	size_t bytes;
	CUdeviceptr base;

	CUDA(MemGetAddressRange(&base, &bytes, block));
}

static void free_block(void)
{
	CUDA(MemFree(block));
}

static void make_stream(void)
{
	CUDA(StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

static void end_stream(void)
{
	CUDA(StreamDestroy(stream));
}

static void (*const calls[])(void) = {retain,    allocate,    ask_size,   share,  free_block,
				      make_stream, end_stream, release};

static void *call_cancelled(void *call)
{
	CUDA(CtxSetCurrent(cuda_context));
	CHECK_EQUAL(pthread_cancel(pthread_self()), 0);
	((void (*)(void))call)();
	pthread_testcancel();
	return call;
}

static void once_with(bool cancelled)
{
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *ended = NULL;
		pthread_t thread;

		test_at("call %zu%s", i, cancelled ? ", cancelled" : "");
		if (!cancelled) {
			calls[i]();
			continue;
		}
		CHECK_EQUAL(pthread_create(&thread, NULL, call_cancelled, (void *)calls[i]), 0);
		CHECK_EQUAL(pthread_join(thread, &ended), 0);
		CHECK(ended == PTHREAD_CANCELED);
	}
}

int main(int argc, char **argv)
{
	test_begin(argc, argv, 60);
	depth_ask(); /* so that there is a lock of the GPU, and whatever else context depth looks after */
	cuda_start();
	controller_accept();
	once_with(false);
	once_with(true);
	once_with(false);
	allocate();
	fill_pattern(block, BYTES, 6);
	controller_park();
	CHECK_RESUMES();
	CHECK(holds_pattern(block, BYTES, 6, 0));
	return 0;
}
