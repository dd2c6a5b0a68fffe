/* An expandable segment of very many handles: ranges of them are made accessible, unmapped and moved as one, and what lies
 * beside a range stays as it is.  */
#include "harness.h"

#define BYTES MiB(2)
#define PIECES 240
#define WRITTEN 12 /* of them carry a pattern */

static CUmemGenericAllocationHandle handles[PIECES];
static unsigned written[WRITTEN]; /* pieces, each seeded by its place in this list */
static CUdeviceptr segment;

static CUdeviceptr piece(unsigned i)
{
	return segment + i * BYTES;
}

static void map(unsigned from, unsigned to)
{
	for (unsigned i = from; i < to; i++)
		CUDA(MemMap(piece(i), BYTES, 0, handles[i], 0));
	CUDA(MemSetAccess(piece(from), (to - from) * BYTES, &cuda_access, 1));
}

static void verify(void)
{
	for (unsigned n = 0; n < WRITTEN; n++)
		CHECK(holds_pattern(piece(written[n]), BYTES, n + 1, 0));
}

static void move_and_verify(unsigned mapped)
{
	controller_park();
	CHECK_EQUAL(page_read().gpus[0].parked_bytes, mapped * BYTES);
	CHECK_RESUMES();
	verify();
}

static bool is_mapped(unsigned i)
{
	unsigned long long flags;

	return cu.MemGetAccess(&flags, &cuda_access.location, piece(i)) == CUDA_SUCCESS;
}

/* Pieces [from, to) go while their handles stay: resident or parked, the contents of whatever is mapped again return.  */
static void unmap_and_map_again(unsigned from, unsigned to, bool while_parked)
{
	if (while_parked)
		controller_park();
	/* Not by half pieces, and then none of it.  */
	CHECK(cu.MemUnmap(piece(from) + BYTES / 2, BYTES) != CUDA_SUCCESS);
	CHECK(cu.MemUnmap(piece(from), (to - from) * BYTES - BYTES / 2) != CUDA_SUCCESS);
	CUDA(MemUnmap(piece(from), (to - from) * BYTES));
	if (while_parked)
		CHECK_RESUMES();
	CHECK(is_mapped(from - 1) && !is_mapped(from) && !is_mapped(to - 1) && is_mapped(to));
	map(from, to);
	verify();
}

int main(int argc, char **argv)
{
	size_t before;
	uint64_t random;

	cuda_begin(argc, argv, 60);
	random = test_seed;

	before = cuda_free_bytes();
	CUDA(MemAddressReserve(&segment, PIECES * BYTES, 0, 0, 0));
	for (unsigned i = 0; i < PIECES; i++)
		CUDA(MemCreate(&handles[i], BYTES, &cuda_prop, 0));
	/* The end of the segment first, so that it does not only grow upwards.  */
	map(PIECES / 2, PIECES);
	map(0, PIECES / 2);
	for (unsigned n = 0; n < WRITTEN; n++) {
		written[n] = n * (PIECES / WRITTEN) + (unsigned)(test_random(&random) % (PIECES / WRITTEN));
		CHECK_EQUAL(launch_pattern(NULL, piece(written[n]), BYTES, n + 1), CUDA_SUCCESS);
	}
	CUDA(CtxSynchronize());
	move_and_verify(PIECES);
	unmap_and_map_again(20, 60, false);
	unmap_and_map_again(90, 150, true);
	move_and_verify(PIECES);

	/* The application lets go of its handles, as expandable segments do; the mappings keep the memory.  */
	for (unsigned i = 0; i < PIECES; i++)
		CUDA(MemRelease(handles[i]));
	CHECK(cu.MemRelease(handles[7]) != CUDA_SUCCESS);
	move_and_verify(PIECES);
	controller_park();
	CUDA(MemUnmap(segment, PIECES / 2 * BYTES));
	CHECK_RESUMES();
	for (unsigned n = 0; n < WRITTEN; n++)
		CHECK(written[n] < PIECES / 2 || holds_pattern(piece(written[n]), BYTES, n + 1, 0));
	CUDA(MemUnmap(piece(PIECES / 2), (PIECES - PIECES / 2) * BYTES));
	CUDA(MemAddressFree(segment, PIECES * BYTES));
	/* But for what the first adoption made ready: the mover's stream, the digests' key and results, the witness.  */
	CHECK(before - cuda_free_bytes() <= MiB(8));
	return 0;
}
