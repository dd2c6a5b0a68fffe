/* What a program frees while its memory is parked is no contents any more: the host memory under it goes back to the
 * system, and to the controller that lent it, at once and not with the resume, off the GPU too. The rest comes back right.  */
#include "depth.h"
#include "grown_up.h"

#define BYTES MiB(32)
#define BLOCKS 3
#define LOT MiB(32)

static CUdeviceptr blocks[BLOCKS];
static CUdeviceptr zeros;

static void make(int i)
{
	CUDA(MemAlloc(&blocks[i], BYTES));
	CHECK_EQUAL(launch_pattern(NULL, blocks[i], BYTES, 40 + (uint32_t)i), CUDA_SUCCESS);
}

static uint64_t host_bytes(void)
{
	const struct affinode_page page = page_read();

	return page.copy_bytes + page.retained_bytes;
}

static void free_one_while_parked(int i)
{
	uint64_t before = host_bytes();

	CHECK_EQUAL(page_read().copy_bytes, BLOCKS * BYTES);
	CUDA(MemFree(blocks[i]));
	PAGE_UNTIL(page.copy_bytes == (BLOCKS - 1) * BYTES && page.copy_bytes + page.retained_bytes == before - BYTES);
	CHECK_EQUAL(page_read().gpus[0].parked_bytes, (BLOCKS - 1) * BYTES + MiB(8));
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
}

static void rest_is_right(int freed)
{
	CHECK_RESUMES();
	for (int i = 0; i < BLOCKS; i++)
		CHECK(i == freed || holds_pattern(blocks[i], BYTES, 40 + (uint32_t)i, 0));
	make(freed);
	CUDA(CtxSynchronize());
}

int main(int argc, char **argv)
{
	uint64_t before;
	uint32_t lot;

	test_begin(argc, argv, 100);
	depth_ask();
	cuda_start_grown_up();
	controller_accept();
	for (int i = 0; i < BLOCKS; i++)
		make(i);
	CUDA(MemAlloc(&zeros, MiB(8)));
	CUDA(CtxSynchronize());

	test_at("at memory depth");
	controller_park();
	free_one_while_parked(1);
	rest_is_right(1);

	test_at("off the GPU");
	controller_trim();
	park_deep_surely();
	free_one_while_parked(0);
	CUDA(MemFree(zeros)); /* which had no host memory */
	CHECK_EQUAL(page_read().depth, AFFINODE_DEPTH_CONTEXT);
	CHECK_EQUAL(gpu_used_bytes(), 0);
	rest_is_right(0);
	CUDA(MemAlloc(&zeros, MiB(8)));

	test_at("off the GPU, in a lot");
	controller_trim();
	lot = controller_lend(LOT);
	PAGE_UNTIL(page.lot_bytes == LOT);
	park_deep_surely();
	before = host_bytes();
	for (int i = 0; i < BLOCKS; i++)
		CUDA(MemFree(blocks[i]));
	CHECK_EQUAL(controller_noticed(AFFINODE_NOTIFY_LOT_END, NULL), lot);
	PAGE_UNTIL(page.copy_bytes == 0 && page.lot_bytes == 0 && page.retained_bytes == before - BLOCKS * BYTES);
	CHECK_EQUAL(page_read().depth, AFFINODE_DEPTH_CONTEXT);
	CHECK_RESUMES();
	for (int i = 0; i < BLOCKS; i++)
		make(i);
	CUDA(CtxSynchronize());
	for (int i = 0; i < BLOCKS; i++)
		CHECK(holds_pattern(blocks[i], BYTES, 40 + (uint32_t)i, 0));
	return 0;
}
