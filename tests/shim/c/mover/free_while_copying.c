/* What is freed while the mover copies it out stays until the GPU is done with it: work that was submitted before still runs
 * when the park comes to nothing. And then it goes, though the program asks the driver for nothing more.  */
#include "harness.h"

#define ROUNDS 2
#define BLOCKS 6

static CUdeviceptr blocks[BLOCKS];

static void fill(uint32_t seed)
{
	for (int i = 0; i < BLOCKS; i++) {
		CUDA(MemAlloc(&blocks[i], MiB(4)));
		CHECK_EQUAL(launch_pattern(NULL, blocks[i], MiB(4), seed), CUDA_SUCCESS);
	}
	CUDA(CtxSynchronize());
}

int main(int argc, char **argv)
{
	uint64_t random;

	setenv("AFFINODE_SIM_COPY_RATE", "100MiB", 1); /* 24 MiB take 240 ms */
	cuda_begin(argc, argv, 60);
	random = test_seed;

	fill(0);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		size_t before = cuda_free_bytes();
		uint32_t park = controller_command(AFFINODE_COMMAND_PARK, 0);

		PAGE_UNTIL(page.state == AFFINODE_STATE_PARKING || controller_replied(park));
		usleep((unsigned)(test_random(&random) % 60000));
		CHECK_EQUAL(launch_spin(NULL, 400000000u), CUDA_SUCCESS);
		for (int i = 0; i < BLOCKS; i++)
			CHECK_EQUAL(launch_add(NULL, blocks[i], MiB(4), 1), CUDA_SUCCESS);
		for (int i = 0; i < BLOCKS; i += 2)
			CUDA(MemFree(blocks[i]));
		controller_reply(park);
		/* A park that was answered for being late goes on to its end.  */
		PAGE_UNTIL(page.state != AFFINODE_STATE_PARKING);
		if (page_read().state != AFFINODE_STATE_RESIDENT)
			CHECK_RESUMES();
		CUDA(CtxSynchronize());
		for (int i = 1; i < BLOCKS; i += 2)
			CHECK(holds_pattern(blocks[i], MiB(4), round, 1));
		UNTIL(cuda_free_bytes() >= before + BLOCKS / 2 * MiB(4));
		for (int i = 1; i < BLOCKS; i += 2)
			CUDA(MemFree(blocks[i]));
		fill(round + 1);
	}
	return 0;
}
