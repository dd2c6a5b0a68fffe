/* Memory that is bound to a multicast object or a logical endpoint, by its handle or by its address, stays on the GPU: others write
 * to the physical memory that was there when it was bound.  */
#include "harness.h"

#define BYTES MiB(4)

#define OBJECT 7 /* multicast object or endpoint: the simulated driver does not look */

static CUdeviceptr anchor;
static uint64_t shared; /* bytes that stay */

/* Only what was not bound leaves the GPU.  */
static void park_and_resume(void)
{
	controller_park();
	PAGE_UNTIL(page.gpus[0].parked_bytes == BYTES && page.gpus[0].resident_bytes == 0);
	PAGE_UNTIL(page.gpus[0].unmovable_bytes[AFFINODE_UNMOVABLE_SHARED] == shared);
	CHECK_RESUMES();
	CHECK(holds_pattern(anchor, BYTES, 1, 0));
}

static CUdeviceptr allocated(void)
{
	CUdeviceptr block;

	CUDA(MemAlloc(&block, BYTES));
	return block;
}

static CUdeviceptr mapped(CUmemGenericAllocationHandle *own)
{
	CUDA(MemCreate(own, BYTES, &cuda_prop, 0));
	return cuda_map(*own, BYTES);
}

/* The memory, and how it was bound. What the program writes to it is where it was bound.  */
static void stays(CUdeviceptr at, CUresult bound, uint32_t seed)
{
	CHECK_EQUAL(bound, CUDA_SUCCESS);
	shared += BYTES;
	fill_pattern(at, BYTES, seed);
	park_and_resume();
	CHECK(holds_pattern(at, BYTES, seed, 0));
}

#define FIND(function, name) *(void **)&(function) = cuda_symbol(name)

int main(int argc, char **argv)
{
	CUresult (*by_handle)(CUmemGenericAllocationHandle, size_t, CUmemGenericAllocationHandle, size_t, size_t, unsigned long long);
	CUresult (*by_device_and_handle)(CUmemGenericAllocationHandle, CUdevice, size_t, CUmemGenericAllocationHandle, size_t, size_t,
					 unsigned long long);
	CUresult (*by_address)(CUmemGenericAllocationHandle, size_t, CUdeviceptr, size_t, unsigned long long);
	CUresult (*by_device_and_address)(CUmemGenericAllocationHandle, CUdevice, size_t, CUdeviceptr, size_t, unsigned long long);
	CUresult (*endpoint_by_address)(unsigned, CUdevice, size_t, void *, size_t, unsigned long long);
	CUresult (*endpoint_by_handle)(unsigned, CUdevice, size_t, CUmemGenericAllocationHandle, size_t, size_t, unsigned long long);
	CUmemGenericAllocationHandle own;
	CUdeviceptr at;

	cuda_begin(argc, argv, 60);
	FIND(by_handle, "cuMulticastBindMem");
	FIND(by_device_and_handle, "cuMulticastBindMem_v2");
	FIND(by_address, "cuMulticastBindAddr");
	FIND(by_device_and_address, "cuMulticastBindAddr_v2");
	FIND(endpoint_by_address, "cuLogicalEndpointBindAddr");
	FIND(endpoint_by_handle, "cuLogicalEndpointBindMem");
	anchor = cuda_block(BYTES, 1);
	at = mapped(&own);
	stays(at, by_handle(OBJECT, 0, own, 0, BYTES, 0), 2);
	at = mapped(&own);
	stays(at, by_device_and_handle(OBJECT, 0, 0, own, 0, BYTES, 0), 3);
	at = allocated();
	stays(at, by_address(OBJECT, 0, at, BYTES, 0), 4);
	at = mapped(&own);
	stays(at, by_device_and_address(OBJECT, 0, 0, at, BYTES, 0), 5);
	at = allocated();
	stays(at, endpoint_by_address(OBJECT, 0, 0, (void *)(uintptr_t)at, BYTES, 0), 6);
	at = mapped(&own);
	stays(at, endpoint_by_handle(OBJECT, 0, 0, own, 0, BYTES, 0), 7);
	return 0;
}
