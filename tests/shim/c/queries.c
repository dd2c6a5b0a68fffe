/* Questions about memory have the same answers while parked as while resident, and none of them resumes.  */
#include "harness.h"

#define CONTEXT 1
#define MEMORY_TYPE 2
#define DEVICE_POINTER 3
#define HOST_POINTER 4
#define SYNC_MEMOPS 6
#define BUFFER_ID 7
#define IS_MANAGED 8
#define DEVICE_ORDINAL 9
#define RANGE_START 11
#define RANGE_SIZE 12
#define MAPPED 13

static int attributes[] = {CONTEXT,    MEMORY_TYPE,    DEVICE_POINTER, BUFFER_ID,
			   IS_MANAGED, DEVICE_ORDINAL, RANGE_START,    RANGE_SIZE, MAPPED};
#define ATTRIBUTES (sizeof(attributes) / sizeof(attributes[0]))

struct answers {
	CUresult one[ATTRIBUTES], all, range;
	uint64_t value[ATTRIBUTES], together[ATTRIBUTES];
	CUdeviceptr base;
	size_t size;
};

static struct answers ask(CUdeviceptr at)
{
	struct answers got;
	void *data[ATTRIBUTES];

	memset(&got, 0, sizeof(got));
	for (size_t i = 0; i < ATTRIBUTES; i++) {
		got.one[i] = cu.PointerGetAttribute(&got.value[i], attributes[i], at);
		data[i] = &got.together[i];
	}
	got.all = cu.PointerGetAttributes(ATTRIBUTES, attributes, data, at);
	got.range = cu.MemGetAddressRange(&got.base, &got.size, at);
	return got;
}

static void check_block(const struct answers *got, CUdeviceptr block, size_t bytes, CUdeviceptr at)
{
	for (size_t i = 0; i < ATTRIBUTES; i++) {
		CHECK_EQUAL(got->one[i], CUDA_SUCCESS);
		CHECK_EQUAL(got->value[i], got->together[i]);
	}
	CHECK_EQUAL(got->all, CUDA_SUCCESS);
	CHECK_EQUAL(got->range, CUDA_SUCCESS);
	CHECK_EQUAL(got->base, block);
	CHECK_EQUAL(got->size, bytes);
	CHECK_EQUAL(got->value[0], (uintptr_t)cuda_context);
	CHECK_EQUAL(got->value[2], at);
	CHECK_EQUAL(got->value[6], block);
	CHECK_EQUAL(got->value[7], bytes);
}

int main(int argc, char **argv)
{
	CUdeviceptr large, small, freed;
	size_t bytes = MiB(3) + 4096, total, total_parked, unused;
	struct answers resident[4], parked[4];

	test_begin(argc, argv, 30);
	cuda_start();
	controller_accept();
	CUDA(MemAlloc(&large, bytes));
	CUDA(MemAlloc(&small, 4096));
	CUDA(MemAlloc(&freed, bytes));
	CHECK_EQUAL(launch_pattern(NULL, large, bytes, 3), CUDA_SUCCESS);
	CUDA(CtxSynchronize());

	CUdeviceptr places[4] = {large, large + 12345, large + bytes - 1, small + 8};
	CUDA(MemGetInfo(&unused, &total));
	for (int i = 0; i < 4; i++)
		resident[i] = ask(places[i]);
	for (int i = 0; i < 3; i++)
		check_block(&resident[i], large, bytes, places[i]);
	controller_park();
	for (int i = 0; i < 4; i++)
		parked[i] = ask(places[i]);
	CHECK_EQUAL(memcmp(resident, parked, sizeof(resident)), 0);
	CUDA(MemGetInfo(&unused, &total_parked));
	CHECK_EQUAL(total, total_parked);
	CUDA(MemFree(freed));
	struct answers gone = ask(freed);
	CHECK(gone.range != CUDA_SUCCESS);
	CHECK(gone.one[0] != CUDA_SUCCESS);

	/* Waiting for the GPU, polling it, freeing: a variable inspector wakes nothing.  */
	CUDA(CtxSynchronize());
	CUDA(StreamQuery(NULL));
	CHECK_EQUAL(page_read().want, 0);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	CHECK_EQUAL(page_read().resumes, 0);
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_OK);
	for (int i = 0; i < 4; i++)
		parked[i] = ask(places[i]);
	CHECK_EQUAL(memcmp(resident, parked, sizeof(resident)), 0);
	CHECK(holds_pattern(large, bytes, 3, 0));
	return 0;
}
