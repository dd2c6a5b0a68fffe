/* A thread unmaps memory while a park copies, and the GPU waits for what the thread does next: the park gives up in time, and
 * the unmapping is not held up until the GPU's work has ended, which would be never.  */
#include "board.h"
#include "harness.h"

static CUdeviceptr mapping;
static uint32_t *flag; /* the GPU waits until it is not 0 */

static void unmap_then_set_flag(void)
{
	CUDA(CtxSetCurrent(cuda_context));
	CUDA(MemUnmap(mapping, MiB(2)));
	__atomic_store_n(flag, 1, __ATOMIC_RELEASE);
}

int main(int argc, char **argv)
{
	CUmemGenericAllocationHandle handle;
	CUresult (*create_hidden)(CUstream *, unsigned int);
	struct call unmaps;
	CUstream hidden;
	CUdeviceptr block;
	uint32_t epoch;
	void *host;

	board_begin(argc, argv, 30);
	block = cuda_block(MiB(4), 8);
	CUDA(MemCreate(&handle, MiB(2), &cuda_prop, 0));
	mapping = cuda_map(handle, MiB(2));
	CUDA(MemHostAlloc(&host, 4096, 0));
	flag = host;
	*flag = 0;
	*(void **)&create_hidden = cuda_hidden("cuStreamCreate");
	CHECK_EQUAL(create_hidden(&hidden, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS); /* its work is not seen by a look */
	CUDA(CtxSynchronize());
	do {
		board_arm("cuStreamSynchronize:HOLD:2"); /* behind the last copy, as the first is behind the digests */
		epoch = controller_command(AFFINODE_COMMAND_PARK, 0);
	} while (!board_holds_in(epoch)); /* this machine is too slow for the mover's patience */
	call_begin(&unmaps, unmap_then_set_flag);
	CHECK(call_waits(&unmaps));
	CHECK_EQUAL(launch_wait_flag(hidden, flag), CUDA_SUCCESS);
	board_disarm();
	CHECK_EQUAL(controller_reply(epoch).status, AFFINODE_BUSY);
	call_end(&unmaps);
	CUDA(CtxSynchronize());
	CUDA(MemRelease(handle));
	controller_park();
	CHECK_RESUMES();
	CHECK(holds_pattern(block, MiB(4), 8, 0));
	return 0;
}
