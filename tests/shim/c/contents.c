#include "contents.h"

#include "harness.h"

#define CHUNK MiB(2)

static const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
					 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static const CUmemAccessDesc access_all = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

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
};

static uint32_t seeds;

static CUdeviceptr map(CUmemGenericAllocationHandle handle, size_t bytes)
{
	CUdeviceptr at;

	CUDA(MemAddressReserve(&at, bytes, 0, 0, 0));
	CUDA(MemMap(at, bytes, 0, handle, 0));
	CUDA(MemSetAccess(at, bytes, &access_all, 1));
	return at;
}

void contents_fill(unsigned i)
{
	CUdeviceptr at = blocks[i].at;

	blocks[i].seed = ++seeds;
	blocks[i].added = 0;
	if (i == CONTENTS_ZERO) {
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

void contents_allocate(unsigned i)
{
	CUmemGenericAllocationHandle handle;

	if (i == CONTENTS_MAPPED) {
		CUDA(MemCreate(&handle, blocks[i].bytes, &prop, 0));
		blocks[i].at = map(handle, blocks[i].bytes);
		blocks[i].again = map(handle, blocks[i].bytes);
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
	for (unsigned i = 0; i < CONTENTS_BLOCKS; i++)
		contents_allocate(i);
}

CUresult contents_change(unsigned i)
{
	CUresult result;

	CHECK(i != CONTENTS_ZERO && i != CONTENTS_ZERO_AMIDST);
	result = launch_add(NULL, blocks[i].at, blocks[i].bytes, 1);
	if (result == CUDA_SUCCESS)
		blocks[i].added++;
	return result;
}

static bool zero(CUdeviceptr at, size_t bytes)
{
	uint32_t *words = malloc(bytes);
	bool right;

	CHECK(words != NULL);
	CUDA(MemcpyDtoH(words, at, bytes));
	right = words[0] == 0 && memcmp(words, words + 1, bytes - 4) == 0;
	free(words);
	return right;
}

void contents_are_right(void)
{
	for (unsigned i = 0; i < CONTENTS_BLOCKS; i++) {
		CUdeviceptr at = blocks[i].at;
		uint32_t seed = blocks[i].seed, added = blocks[i].added;
		bool right;

		if (!at)
			continue;
		if (i == CONTENTS_ZERO)
			right = zero(at, blocks[i].bytes);
		else if (i == CONTENTS_ZERO_AMIDST)
			right = holds_pattern(at, CHUNK, seed, 0) && zero(at + CHUNK, CHUNK) &&
				holds_pattern(at + 2 * CHUNK, CHUNK, seed, 0);
		else
			right = holds_pattern(at, blocks[i].bytes, seed, added);
		if (i == CONTENTS_MAPPED)
			right = right && holds_pattern(blocks[i].again, blocks[i].bytes, seed, added);
		if (!right)
			test_fail(__FILE__, __LINE__, "the contents are wrong of block", i);
	}
}

size_t contents_bytes(void)
{
	size_t sum = 0;

	for (unsigned i = 0; i < CONTENTS_BLOCKS; i++)
		sum += blocks[i].at ? (blocks[i].bytes + CHUNK - 1) / CHUNK * CHUNK : 0;
	return sum;
}
