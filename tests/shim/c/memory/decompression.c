/* On a GPU with a decompression engine cuMemAlloc's memory may be given to it, so backed memory is made for that, too, and
 * again at each resume.  */
#include "harness.h"

#define BYTES MiB(3)
#define IS_HW_DECOMPRESS_CAPABLE 21

static void is_capable(CUdeviceptr block)
{
	CUresult (*ask_driver)(void *, int, CUdeviceptr);
	unsigned char capable = 0, is = 0;

	*(void **)&ask_driver = cuda_hidden("cuPointerGetAttribute");
	CHECK_EQUAL(ask_driver(&is, IS_HW_DECOMPRESS_CAPABLE, block), CUDA_SUCCESS);
	CHECK(is);
	CUDA(PointerGetAttribute(&capable, IS_HW_DECOMPRESS_CAPABLE, block));
	CHECK(capable);
}

/* The application's own memory for the engine is moved like any other.  */
static CUdeviceptr map_own(void)
{
	const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
					  .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
					  .allocFlags.usage = CU_MEM_CREATE_USAGE_HW_DECOMPRESS};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;

	CUDA(MemCreate(&handle, MiB(2), &prop, 0));
	at = cuda_map(handle, MiB(2));
	return at;
}

int main(int argc, char **argv)
{
	void (*decompresses)(int with);
	unsigned char capable = 0;
	CUdeviceptr block, own;

	test_begin(argc, argv, 30);
	*(void **)&decompresses = cuda_in_front("decompresses");
	decompresses(3);
	cuda_start();
	controller_accept();
	CUDA(MemAlloc(&block, BYTES));
	own = map_own();
	CHECK_EQUAL(launch_pattern(NULL, own, MiB(2), 7), CUDA_SUCCESS);
	is_capable(block);
	is_capable(own);
	controller_park();
	PAGE_UNTIL(page.gpus[0].resident_bytes == 0 && page.gpus[0].parked_bytes == MiB(2) + MiB(4));
	CUDA(PointerGetAttribute(&capable, IS_HW_DECOMPRESS_CAPABLE, block));
	CHECK(capable);
	CUDA(PointerGetAttribute(&capable, IS_HW_DECOMPRESS_CAPABLE, own));
	CHECK(capable);
	CHECK_RESUMES();
	is_capable(block);
	is_capable(own);
	CHECK(holds_pattern(own, MiB(2), 7, 0));
	return 0;
}
