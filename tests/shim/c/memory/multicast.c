/* Memory that is bound to a multicast object or a logical endpoint, by its handle or by its address, stays on the GPU: others write
 * to the physical memory that was there when it was bound.  */
#include "harness.h"

#define BYTES MiB(4)

struct multicast_prop {
	unsigned int devices;
	size_t size;
	unsigned long long handle_types, flags;
};

static CUresult (*create)(CUmemGenericAllocationHandle *, const struct multicast_prop *);
static CUresult (*add_device)(CUmemGenericAllocationHandle, CUdevice);
static CUdeviceptr anchor;
static uint64_t shared; /* bytes that stay */

static CUmemGenericAllocationHandle multicast(void)
{
	const struct multicast_prop wanted = {1, BYTES, 0, 0};
	CUmemGenericAllocationHandle made;

	CHECK_EQUAL(create(&made, &wanted), CUDA_SUCCESS);
	CHECK_EQUAL(add_device(made, 0), CUDA_SUCCESS);
	return made;
}

/* Only what was not bound leaves the GPU.  */
static void park_and_resume(void)
{
	controller_park();
	PAGE_UNTIL(page.gpus[0].parked_bytes == BYTES && page.gpus[0].resident_bytes == 0);
	PAGE_UNTIL(page.gpus[0].unmovable_bytes[AFFINODE_UNMOVABLE_SHARED] == shared);
	CHECK_RESUMES();
	CHECK(holds_pattern(anchor, BYTES, 1, 0));
}

/* Written by one way, read by the other, after both were told to move.  */
static void is_the_same_memory(CUdeviceptr one, CUdeviceptr other, uint32_t seed)
{
	park_and_resume();
	fill_pattern(one, BYTES, seed);
	CHECK(holds_pattern(other, BYTES, seed, 0));
}

static void multicast_by_address(void)
{
	CUresult (*bind)(CUmemGenericAllocationHandle, size_t, CUdeviceptr, size_t, unsigned long long);
	CUmemGenericAllocationHandle object = multicast();
	CUdeviceptr block;

	*(void **)&bind = cuda_symbol("cuMulticastBindAddr");
	CUDA(MemAlloc(&block, BYTES));
	CHECK_EQUAL(bind(object, 0, block, BYTES, 0), CUDA_SUCCESS);
	shared += BYTES;
	is_the_same_memory(cuda_map(object, BYTES), block, 2);
}

static void multicast_of_a_device_by_address(void)
{
	CUresult (*bind)(CUmemGenericAllocationHandle, CUdevice, size_t, CUdeviceptr, size_t, unsigned long long);
	CUmemGenericAllocationHandle object = multicast(), own;
	CUdeviceptr at;

	*(void **)&bind = cuda_symbol("cuMulticastBindAddr_v2");
	CUDA(MemCreate(&own, BYTES, &cuda_prop, 0));
	at = cuda_map(own, BYTES);
	CHECK_EQUAL(bind(object, 0, 0, at, BYTES, 0), CUDA_SUCCESS);
	shared += BYTES;
	is_the_same_memory(cuda_map(object, BYTES), at, 3);
}

static void multicast_by_handle(void)
{
	CUresult (*bind)(CUmemGenericAllocationHandle, size_t, CUmemGenericAllocationHandle, size_t, size_t, unsigned long long);
	CUmemGenericAllocationHandle object = multicast(), own;
	CUdeviceptr at;

	*(void **)&bind = cuda_symbol("cuMulticastBindMem");
	CUDA(MemCreate(&own, BYTES, &cuda_prop, 0));
	at = cuda_map(own, BYTES);
	CHECK_EQUAL(bind(object, 0, own, 0, BYTES, 0), CUDA_SUCCESS);
	shared += BYTES;
	is_the_same_memory(cuda_map(object, BYTES), at, 4);
}

static void endpoint_by_address(void)
{
	CUresult (*bind)(unsigned, CUdevice, size_t, void *, size_t, unsigned long long);
	CUdeviceptr block;

	*(void **)&bind = cuda_symbol("cuLogicalEndpointBindAddr");
	CUDA(MemAlloc(&block, BYTES));
	CHECK_EQUAL(bind(7, 0, 0, (void *)(uintptr_t)block, BYTES, 0), CUDA_SUCCESS);
	shared += BYTES;
	park_and_resume();
}

static void endpoint_by_handle(void)
{
	CUresult (*bind)(unsigned, CUdevice, size_t, CUmemGenericAllocationHandle, size_t, size_t, unsigned long long);
	CUmemGenericAllocationHandle own;

	*(void **)&bind = cuda_symbol("cuLogicalEndpointBindMem");
	CUDA(MemCreate(&own, BYTES, &cuda_prop, 0));
	cuda_map(own, BYTES);
	CHECK_EQUAL(bind(7, 0, 0, own, 0, BYTES, 0), CUDA_SUCCESS);
	shared += BYTES;
	park_and_resume();
}

int main(int argc, char **argv)
{
	static void (*const ways[])(void) = {multicast_by_handle, multicast_by_address, multicast_of_a_device_by_address,
					     endpoint_by_address, endpoint_by_handle};

	cuda_begin(argc, argv, 60);
	*(void **)&create = cuda_symbol("cuMulticastCreate");
	*(void **)&add_device = cuda_symbol("cuMulticastAddDevice");
	anchor = cuda_block(BYTES, 1);
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
		ways[i]();
	return 0;
}
