/* An allocation and a free ask no more of the driver than what a backed block is made of: with no caching allocator in
 * between, every further call is what the person pays for the shim.  */
#include "board.h"
#include "harness.h"

#define PAIRS 50

static const struct {
	const char *name;
	unsigned calls; /* a pair */
} expected[] = {
	{"cuMemAddressReserve", 1}, {"cuMemCreate", 1},	      {"cuMemMap", 1},	   {"cuMemSetAccess", 1},
	{"cuMemUnmap", 1},	    {"cuMemRelease", 1},      {"cuMemAddressFree", 1}, {"cuCtxSynchronize", 1},
	{"cuCtxGetCurrent", 2}, /* whose memory is it to be; must another context be waited for: both stay in the thread */
	{"cuCtxPushCurrent", 0},    {"cuCtxPopCurrent", 0},   {"cuCtxSetCurrent", 0},  {"cuStreamQuery", 0},
	{"cuStreamSynchronize", 0}, {"cuPointerGetAttribute", 0}, {"cuThreadExchangeStreamCaptureMode", 0},
};
#define EXPECTED (sizeof(expected) / sizeof(expected[0]))

/* How often the driver is asked that in so many pairs. The fault only counts: it means something to a restore alone.  */
static unsigned calls_of(const char *name)
{
	CUdeviceptr at;

	board_arm("%s:STAY:1+", name);
	for (unsigned n = 0; n < PAIRS; n++) {
		CUDA(MemAlloc(&at, MiB(2) * (1 + n % 10)));
		CUDA(MemFree(at));
	}
	return board_disarm();
}

int main(int argc, char **argv)
{
	CUdeviceptr at;

	board_begin(argc, argv, 30);
	CUDA(MemAlloc(&at, MiB(2))); /* makes the context ready */
	CUDA(MemFree(at));
	for (size_t i = 0; i < EXPECTED; i++) {
		unsigned calls = calls_of(expected[i].name);

		if (calls != PAIRS * expected[i].calls)
			test_fail(__FILE__, __LINE__, expected[i].name, calls);
	}
	return 0;
}
