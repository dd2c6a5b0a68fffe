/* The application's own memory (cuMemCreate) in every order of create, map, set access, unmap, release and retain, parked
 * and resident, under several addresses: contents follow the allocation, and nothing is left over at the end.  */
#include "harness.h"

#define BYTES MiB(2)
#define ALLOCATIONS 6
#define PLACES 10
#define STEPS 600

struct allocation {
	CUmemGenericAllocationHandle handle; /* 0: given back */
	unsigned references;
	uint32_t seed; /* 0: nothing written yet */
	bool alive;
};

struct place {
	CUdeviceptr at;
	int allocation; /* -1: nothing mapped */
	bool accessible;
};

static struct allocation allocations[ALLOCATIONS];
static struct place places[PLACES];
static uint64_t random_state;
static bool parked;

static unsigned pick(unsigned n)
{
	return (unsigned)(test_random(&random_state) % n);
}

static unsigned mapped_count(int allocation)
{
	unsigned n = 0;

	for (int i = 0; i < PLACES; i++)
		n += places[i].allocation == allocation;
	return n;
}

/* It cannot be reached any more.  */
static void settle(int i)
{
	if (allocations[i].references == 0 && mapped_count(i) == 0)
		allocations[i].alive = false;
}

static void make(int i)
{
	CUDA(MemCreate(&allocations[i].handle, BYTES, &cuda_prop, 0));
	allocations[i] = (struct allocation){allocations[i].handle, 1, 0, true};
}

static void map(int i, int at)
{
	CUDA(MemMap(places[at].at, BYTES, 0, allocations[i].handle, 0));
	places[at].allocation = i;
	places[at].accessible = false;
}

static void allow(int at)
{
	struct allocation *allocation = &allocations[places[at].allocation];

	CUDA(MemSetAccess(places[at].at, BYTES, &cuda_access, 1));
	places[at].accessible = true;
	if (allocation->seed == 0) {
		allocation->seed = (uint32_t)test_random(&random_state) | 1;
		fill_pattern(places[at].at, BYTES, allocation->seed);
	}
}

static void unmap(int at)
{
	int i = places[at].allocation;

	CUDA(MemUnmap(places[at].at, BYTES));
	places[at].allocation = -1;
	settle(i);
}

static void release(int i)
{
	CUDA(MemRelease(allocations[i].handle));
	if (--allocations[i].references == 0)
		allocations[i].handle = 0;
	settle(i);
}

static void retain(int at)
{
	struct allocation *allocation = &allocations[places[at].allocation];
	CUmemGenericAllocationHandle handle;

	CUDA(MemRetainAllocationHandle(&handle, (void *)(uintptr_t)places[at].at));
	if (allocation->references++ == 0)
		allocation->handle = handle;
	CHECK(allocation->handle == handle);
}

static void verify(void)
{
	for (int i = 0; i < PLACES; i++)
		if (places[i].allocation >= 0 && places[i].accessible && allocations[places[i].allocation].seed)
			CHECK(holds_pattern(places[i].at, BYTES, allocations[places[i].allocation].seed, 0));
}

static void move(void)
{
	if (parked) {
		CHECK_RESUMES();
		parked = false;
		verify();
		return;
	}
	int status;

	do
		status = controller_move(AFFINODE_COMMAND_PARK);
	while (status == AFFINODE_BUSY); /* this machine is too slow for the mover's patience */
	CHECK(status == AFFINODE_OK || status == AFFINODE_NOTHING);
	parked = status == AFFINODE_OK;
}

/* One step that the application may take now; those that need the GPU only while it has it.  */
static void step(void)
{
	int i = (int)pick(ALLOCATIONS), at = (int)pick(PLACES);
	bool mapped = places[at].allocation >= 0;

	switch (pick(10)) {
	case 0:
	case 1:
		if (!allocations[i].alive && !parked)
			make(i);
		break;
	case 2:
	case 3:
		if (allocations[i].references && !mapped && !parked)
			map(i, at);
		break;
	case 4:
	case 5:
		if (mapped && !places[at].accessible && !parked)
			allow(at);
		break;
	case 6:
		if (mapped)
			unmap(at);
		break;
	case 7:
		if (allocations[i].references)
			release(i);
		break;
	case 8:
		if (mapped && !parked)
			retain(at);
		break;
	default:
		move();
	}
}

/* It goes to the driver in a list of what sparse arrays are to be mapped to, so it is the driver's own.  */
static void handle_of_a_tile_pool(void)
{
	CUresult (*release)(CUmemGenericAllocationHandle);
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp tiles = cuda_prop;

	*(void **)&release = cuda_hidden("cuMemRelease");
	tiles.allocFlags.usage = 1; /* CU_MEM_CREATE_USAGE_TILE_POOL */
	CUDA(MemCreate(&handle, BYTES, &tiles, 0));
	CHECK_EQUAL(release(handle), CUDA_SUCCESS);
}

int main(int argc, char **argv)
{
	size_t before;
	unsigned long long flags;
	CUdeviceptr anchor;

	cuda_begin(argc, argv, 60);
	random_state = test_seed;

	anchor = cuda_block(BYTES, 5); /* makes the context ready, and is there to be parked */
	before = cuda_free_bytes();
	handle_of_a_tile_pool();
	for (int i = 0; i < PLACES; i++) {
		CUDA(MemAddressReserve(&places[i].at, BYTES, 0, 0, 0));
		places[i].allocation = -1;
	}
	for (int n = 0; n < STEPS; n++)
		step();
	if (parked)
		move();
	verify();
	CHECK(holds_pattern(anchor, BYTES, 5, 0));

	/* Access is answered alike, parked or not.  */
	if (!allocations[0].alive)
		make(0);
	for (int i = 0; i < PLACES; i++)
		if (places[i].allocation == 0)
			unmap(i);
	if (!allocations[0].alive)
		make(0);
	if (places[0].allocation >= 0)
		unmap(0);
	map(0, 0);
	allow(0);
	controller_park();
	CUDA(MemGetAccess(&flags, &cuda_access.location, places[0].at));
	CHECK_EQUAL(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	CHECK_EQUAL(page_read().want, 0);

	/* Given back while parked, all of it.  */
	for (int i = 0; i < PLACES; i++)
		if (places[i].allocation >= 0)
			unmap(i);
	for (int i = 0; i < ALLOCATIONS; i++)
		while (allocations[i].references)
			release(i);
	CHECK_RESUMES();
	for (int i = 0; i < PLACES; i++)
		CUDA(MemAddressFree(places[i].at, BYTES));
	CHECK_EQUAL(cuda_free_bytes(), before);
	CHECK(holds_pattern(anchor, BYTES, 5, 0));
	return 0;
}
