/* Contexts that end in the midst of something: of a capture, of the mover's look at the GPU, of another thread's retaining
 * the same one. What was theirs is gone with them, and nothing that is another's.  */
#include "board.h"
#include "harness.h"

static CUcontext primary;

static void release(void)
{
	CUDA(DevicePrimaryCtxRelease(0));
}

static void retain(void)
{
	CUDA(DevicePrimaryCtxRetain(&primary, 0));
}

/* It will never be said that the capture has ended.  */
static void in_a_capture(bool per_thread)
{
	CUdeviceptr block;
	CUstream stream;
	CUcontext own;

	CUDA(CtxCreate(&own, 0, 0));
	CUDA(StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CUDA(StreamBeginCapture(per_thread ? CU_STREAM_PER_THREAD : stream, 0));
	PAGE_UNTIL(page.captures == 1);
	CUDA(CtxDestroy(own));
	PAGE_UNTIL(page.captures == 0);
	CUDA(CtxSetCurrent(primary));
	CUDA(MemAlloc(&block, MiB(2)));
	controller_park();
	CHECK_RESUMES();
	CUDA(MemFree(block));
}

/* The driver is asked nothing about a context that it is destroying.  */
static void in_the_movers_look(void)
{
	struct affinode_reply reply;
	struct call call;

	CUDA(DevicePrimaryCtxRetain(&primary, 0));
	board_arm("cuDevicePrimaryCtxRelease:HOLD:1,cuStreamQuery:UNKNOWN:1+");
	call_begin(&call, release);
	UNTIL(board_holds());
	reply = controller_reply(controller_command(AFFINODE_COMMAND_PARK, 0));
	CHECK_EQUAL(reply.status, AFFINODE_BUSY);
	CHECK(strstr(reply.text, "being ended") != NULL);
	board_disarm();
	call_end(&call);
}

/* The last release, and before it is known to be the last one the next retain.  */
static void as_the_next_one_begins(void)
{
	CUdeviceptr gone, block;
	struct call first, second;
	uint32_t word = 0;

	CUDA(MemAlloc(&gone, MiB(4)));
	PAGE_UNTIL(page.gpus[0].resident_bytes == MiB(4));
	board_arm("cuDevicePrimaryCtxGetState:HOLD:1");
	call_begin(&first, release);
	UNTIL(board_holds());
	call_begin(&second, retain);
	call_waits(&second);
	board_disarm();
	call_end(&first);
	call_end(&second);
	CUDA(CtxSetCurrent(primary));
	CUDA(MemAlloc(&block, MiB(8)));
	CUDA(MemsetD32(block, 9, MiB(2))); /* its kernels went with the other */
	CUDA(CtxSynchronize());
	PAGE_UNTIL(page.gpus[0].resident_bytes == MiB(8));
	controller_park();
	CHECK_RESUMES();
	CUDA(MemcpyDtoH(&word, block + MiB(8) - 4, 4));
	CHECK_EQUAL(word, 9);
}

int main(int argc, char **argv)
{
	CUdeviceptr block;

	test_begin(argc, argv, 40);
	board_make();
	cuda_start();
	primary = cuda_context;
	controller_accept();
	in_a_capture(false);
	in_a_capture(true);
	CUDA(MemAlloc(&block, MiB(2)));
	in_the_movers_look();
	CUDA(MemFree(block));
	as_the_next_one_begins();
	return 0;
}
