#include "contents.h"

#include <unistd.h>

#include "board.h"
#include "controller.h"
#include "harness.h"

#define CHUNK MiB(2)

static struct {
	size_t bytes;
	CUdeviceptr at;
	CUdeviceptr again; /* the other mapping of the same memory */
	uint32_t seed;
	uint32_t added;
} blocks[CONTENTS_BLOCKS] = {
	[CONTENTS_ONE_CHUNK] = {.bytes = CHUNK},
	[CONTENTS_ZERO_AMIDST] = {.bytes = 3 * CHUNK},
	[CONTENTS_BROKEN] = {.bytes = CHUNK + CHUNK / 4},
	[CONTENTS_ZERO] = {.bytes = CHUNK},
	[CONTENTS_MAPPED] = {.bytes = CHUNK},
	[CONTENTS_OTHER_GPU] = {.bytes = CHUNK + CHUNK / 2},
};

static uint32_t seeds;
static CUcontext other_context; /* the second GPU's context; NULL: there is none */

/* Which context is current on this thread while it deals with the block.  */
static void at_block(unsigned i)
{
	CUDA(CtxSetCurrent(i == CONTENTS_OTHER_GPU ? other_context : cuda_context));
}

static void at_home(void)
{
	CUDA(CtxSetCurrent(cuda_context));
}

static void find_second_gpu(void)
{
	int count;

	CUDA(DeviceGetCount(&count));
	if (count > 1)
		CUDA(DevicePrimaryCtxRetain(&other_context, 1));
}

/* Without a kernel, for those that are loaded are the first GPU's.  */
static void copy_pattern(CUdeviceptr at, size_t bytes, uint32_t seed)
{
	uint32_t *words = malloc(bytes);

	CHECK(words != NULL);
	for (size_t i = 0; i < bytes / 4; i++)
		words[i] = pattern_word(seed, i);
	CUDA(MemcpyHtoD(at, words, bytes));
	free(words);
}

static void fill_at_block(unsigned i)
{
	CUdeviceptr at = blocks[i].at;

	blocks[i].seed = ++seeds;
	blocks[i].added = 0;
	if (i == CONTENTS_OTHER_GPU) {
		copy_pattern(at, blocks[i].bytes, blocks[i].seed);
	} else if (i == CONTENTS_ZERO) {
		CUDA(MemsetD32Async(at, 0, blocks[i].bytes / 4, NULL));
	} else if (i == CONTENTS_ZERO_AMIDST) {
		CHECK_EQUAL(launch_pattern(NULL, at, CHUNK, blocks[i].seed), CUDA_SUCCESS);
		CUDA(MemsetD32Async(at + CHUNK, 0, CHUNK / 4, NULL));
		CHECK_EQUAL(launch_pattern(NULL, at + 2 * CHUNK, CHUNK, blocks[i].seed), CUDA_SUCCESS);
	} else {
		CHECK_EQUAL(launch_pattern(NULL, at, blocks[i].bytes, blocks[i].seed), CUDA_SUCCESS);
	}
	CUDA(StreamSynchronize(NULL));
}

void contents_fill(unsigned i)
{
	at_block(i);
	fill_at_block(i);
	at_home();
}

void contents_allocate(unsigned i)
{
	CUmemGenericAllocationHandle handle;

	at_block(i);
	if (i == CONTENTS_MAPPED) {
		CUDA(MemCreate(&handle, blocks[i].bytes, &cuda_prop, 0));
		blocks[i].at = cuda_map(handle, blocks[i].bytes);
		blocks[i].again = cuda_map(handle, blocks[i].bytes);
		CUDA(MemRelease(handle)); /* the mappings keep it */
	} else {
		CUDA(MemAlloc(&blocks[i].at, blocks[i].bytes));
	}
	contents_fill(i);
}

void contents_free(unsigned i)
{
	CUdeviceptr places[] = {blocks[i].at, blocks[i].again};

	for (unsigned j = 0; i == CONTENTS_MAPPED && j < 2; j++) {
		CUDA(MemUnmap(places[j], blocks[i].bytes));
		CUDA(MemAddressFree(places[j], blocks[i].bytes));
	}
	if (i != CONTENTS_MAPPED)
		CUDA(MemFree(blocks[i].at));
	blocks[i].at = blocks[i].again = 0;
}

void contents_make(void)
{
	find_second_gpu();
	for (unsigned i = 0; i < CONTENTS_BLOCKS; i++)
		if (i != CONTENTS_OTHER_GPU || other_context)
			contents_allocate(i);
}

void contents_begin(int argc, char **argv)
{
	board_begin(argc, argv, 140);
	contents_make();
}

CUresult contents_change(unsigned i)
{
	CUresult result;

	CHECK(i != CONTENTS_ZERO && i != CONTENTS_ZERO_AMIDST && i != CONTENTS_OTHER_GPU);
	result = launch_add(NULL, blocks[i].at, blocks[i].bytes, 1);
	if (result == CUDA_SUCCESS)
		blocks[i].added++;
	return result;
}

void contents_change_now(unsigned i)
{
	CHECK_EQUAL(contents_change(i), CUDA_SUCCESS);
	CUDA(CtxSynchronize());
}

static bool zero_chunk(CUdeviceptr at)
{
	static uint32_t words[CHUNK / 4];

	CUDA(MemcpyDtoH(words, at, CHUNK));
	return words[0] == 0 && memcmp(words, words + 1, CHUNK - 4) == 0;
}

void contents_are_right(void)
{
	for (unsigned i = 0; i < CONTENTS_BLOCKS; i++) {
		CUdeviceptr at = blocks[i].at;
		uint32_t seed = blocks[i].seed, added = blocks[i].added;
		bool right;

		if (!at)
			continue;
		at_block(i);
		if (i == CONTENTS_ZERO)
			right = zero_chunk(at);
		else if (i == CONTENTS_ZERO_AMIDST)
			right = holds_pattern(at, CHUNK, seed, 0) && zero_chunk(at + CHUNK) &&
				holds_pattern(at + 2 * CHUNK, CHUNK, seed, 0);
		else
			right = holds_pattern(at, blocks[i].bytes, seed, added);
		if (i == CONTENTS_MAPPED)
			right = right && holds_pattern(blocks[i].again, blocks[i].bytes, seed, added);
		if (!right)
			test_fail(__FILE__, __LINE__, "the contents are wrong of block", i);
	}
	at_home();
}

static size_t in_chunks(unsigned i)
{
	return blocks[i].at ? (blocks[i].bytes + CHUNK - 1) / CHUNK * CHUNK : 0;
}

size_t contents_bytes(void)
{
	size_t sum = 0;

	for (unsigned i = 0; i < CONTENTS_BLOCKS; i++)
		sum += i == CONTENTS_OTHER_GPU ? 0 : in_chunks(i);
	return sum;
}

size_t contents_bytes_of_other_gpu(void)
{
	return in_chunks(CONTENTS_OTHER_GPU);
}

CUcontext contents_other_context(void)
{
	return other_context;
}

void contents_come_in_part(unsigned parts)
{
	uint32_t epoch;
	int status;

	board_arm("cuMemCreate:OUT_OF_MEMORY:%u+", parts + 1);
	epoch = controller_command(AFFINODE_COMMAND_RESUME, HANDS_OVER);
	PAGE_UNTIL(page.gpus[0].resident_bytes > 0 || controller_replied(epoch));
	controller_decide(epoch, false);
	status = controller_reply(epoch).status;
	CHECK(status == AFFINODE_REVOKED || status == AFFINODE_NO_GPU_ROOM); /* its two seconds had passed */
	board_disarm();
	CHECK(page_read().gpus[0].resident_bytes > 0 && page_read().gpus[0].parked_bytes > 0);
}

/* Host memory that is kept from an earlier move is given back, so that there is none but the lot.  */
static void have_only_a_lot(void)
{
	controller_trim();
	controller_lend(MiB(32));
}

void contents_make_ready(const struct move *move)
{
	if (move->of_rest || move->command == AFFINODE_COMMAND_RESUME)
		controller_park();
	else if (move->how & AFFINODE_MOVE_HAND_OVER)
		have_only_a_lot();
	if (move->of_rest)
		contents_come_in_part(2);
}

void contents_child(void)
{
	cuda_start();
	contents_make();
	CHECK_EQUAL(write(TALK_FD, "r", 1), 1);
	for (;;)
		pause();
}

pid_t contents_child_start(void)
{
	char ready;
	int talk;
	pid_t pid = child_start_talking("contents", &talk);

	controller_accept();
	CHECK_EQUAL(read(talk, &ready, 1), 1);
	close(talk);
	return pid;
}

void contents_call(void)
{
	CUDA(CtxSetCurrent(cuda_context));
	CHECK_EQUAL(contents_change(CONTENTS_ONE_CHUNK), CUDA_SUCCESS);
}
