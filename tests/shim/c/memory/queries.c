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
#define BLOCK_ID 20
#define DECOMPRESSES 21

static int attributes[] = {CONTEXT,    MEMORY_TYPE,    DEVICE_POINTER, BUFFER_ID,
			   IS_MANAGED, DEVICE_ORDINAL, RANGE_START,    RANGE_SIZE, MAPPED, BLOCK_ID, DECOMPRESSES};
#define IDS 12
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

static uint64_t id_of(CUdeviceptr at, int attribute)
{
	uint64_t id = 0, together = 0;
	void *data[] = {&together};

	CUDA(PointerGetAttribute(&id, attribute, at));
	CUDA(PointerGetAttributes(1, &attribute, data, at));
	CHECK(id != 0);
	CHECK(id == together);
	return id;
}

/* Caches of registrations tell memory by its ids: no two have the same, and what was freed is never met again.  */
static void ids_are_never_repeated(int attribute)
{
	uint64_t seen[IDS];
	CUdeviceptr block;

	for (int i = 0; i < IDS; i++) {
		CUDA(MemAlloc(&block, i % 3 == 0 ? 4096 : MiB(2)));
		seen[i] = id_of(block, attribute);
		for (int j = 0; j < i; j++)
			CHECK(i % 3 == 0 || seen[i] != seen[j]); /* small ones may share the driver's own blocks */
		if (i % 2)
			CUDA(MemFree(block));
	}
}

/* The application's own memory under two addresses: one allocation, two regions, whatever is behind them now.  */
static CUdeviceptr map_twice(CUmemGenericAllocationHandle *handle)
{
	CUdeviceptr at;

	CUDA(MemCreate(handle, MiB(2), &cuda_prop, 0));
	CUDA(MemAddressReserve(&at, MiB(4), 0, 0, 0));
	CUDA(MemMap(at, MiB(2), 0, *handle, 0));
	CUDA(MemMap(at + MiB(2), MiB(2), 0, *handle, 0));
	CUDA(MemSetAccess(at, MiB(4), &cuda_access, 1));
	return at;
}

struct ids {
	uint64_t buffer[2], block[2];
};

static struct ids ids_of(CUdeviceptr at)
{
	struct ids ids;

	for (int i = 0; i < 2; i++) {
		ids.buffer[i] = id_of(at + (CUdeviceptr)i * MiB(2), BUFFER_ID);
		ids.block[i] = id_of(at + (CUdeviceptr)i * MiB(2), BLOCK_ID);
	}
	CHECK(ids.buffer[0] != ids.buffer[1]);
	CHECK(ids.block[0] == ids.block[1]);
	return ids;
}

int main(int argc, char **argv)
{
	CUmemGenericAllocationHandle handle;
	struct ids mapped, mapped_parked;
	CUdeviceptr own;
	CUdeviceptr large, small, freed;
	size_t bytes = MiB(3) + 4096, total, total_parked, unused;
	struct answers resident[4], parked[4];

	cuda_begin(argc, argv, 30);
	CUDA(MemAlloc(&large, bytes));
	CUDA(MemAlloc(&small, 4096));
	CUDA(MemAlloc(&freed, bytes));
	fill_pattern(large, bytes, 3);

	ids_are_never_repeated(BUFFER_ID);
	ids_are_never_repeated(BLOCK_ID);
	own = map_twice(&handle);
	mapped = ids_of(own);
	CHECK(mapped.block[0] != id_of(large, BLOCK_ID));

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
	mapped_parked = ids_of(own);
	CHECK_EQUAL(memcmp(&mapped, &mapped_parked, sizeof(mapped)), 0);
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
	CHECK_RESUMES();
	for (int i = 0; i < 4; i++)
		parked[i] = ask(places[i]);
	CHECK_EQUAL(memcmp(resident, parked, sizeof(resident)), 0);
	mapped_parked = ids_of(own);
	CHECK_EQUAL(memcmp(&mapped, &mapped_parked, sizeof(mapped)), 0);
	CHECK(holds_pattern(large, bytes, 3, 0));
	return 0;
}
