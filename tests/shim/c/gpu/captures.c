/* While a stream captures nothing is parked, and whatever the mover looks at, the capture stays valid.  */
#include "harness.h"

#define ROUNDS 60

static CUdeviceptr block;
static _Atomic bool stop;
static _Atomic unsigned captured;

/* Capture, with other calls in between.  */
static void capture(CUstream stream, int mode, void (*meanwhile)(CUstream))
{
	CUdeviceptr large;
	CUgraph graph;

	CUDA(MemAlloc(&large, MiB(2)));
	CUDA(StreamBeginCapture(stream, mode));
	CHECK_EQUAL(launch_add(stream, block, MiB(2), 3), CUDA_SUCCESS);
	if (meanwhile)
		meanwhile(stream);
	CUDA(MemFree(large)); /* not the captured work's, so allowed: it must not break the capture */
	CHECK_EQUAL(launch_add(stream, block, MiB(2), 3), CUDA_SUCCESS);
	CUDA(StreamEndCapture(stream, &graph));
	CHECK(graph != NULL);
	CUDA(GraphDestroy(graph));
}

static void park_meanwhile(CUstream stream)
{
	int capturing = 0;

	PAGE_UNTIL(page.captures == 1);
	for (int i = 0; i < 3; i++)
		CHECK_EQUAL(controller_move(AFFINODE_COMMAND_PARK), AFFINODE_BUSY);
	CUDA(StreamIsCapturing(stream, &capturing));
	CHECK_EQUAL(capturing, 1);
}

static void *capture_again_and_again(void *stream)
{
	uint64_t random = test_seed;

	CUDA(CtxSetCurrent(cuda_context));
	while (!atomic_load(&stop)) {
		capture(stream, (int)(test_random(&random) % 3), NULL);
		atomic_fetch_add(&captured, 1);
		usleep(test_random(&random) % 4 ? (unsigned)(test_random(&random) % 2000) : 30000);
	}
	return NULL;
}

/* A thread's own stream has two names.  */
static void ended_by_its_other_name(void)
{
	CUresult (*end)(CUstream, CUgraph *);
	CUgraph graph;

	*(void **)&end = cuda_symbol("cuStreamEndCapture_ptsz");
	CHECK(end != NULL);
	CUDA(StreamBeginCapture(CU_STREAM_PER_THREAD, 0));
	PAGE_UNTIL(page.captures == 1);
	CHECK_EQUAL(end(NULL, &graph), CUDA_SUCCESS);
	CUDA(GraphDestroy(graph));
	PAGE_UNTIL(page.captures == 0);
}

int main(int argc, char **argv)
{
	unsigned parks = 0, refused = 0;
	pthread_t thread;
	CUstream stream, blocking;

	cuda_begin(argc, argv, 40);
	block = cuda_block(MiB(2), 71);
	CUDA(StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CUDA(StreamCreate(&blocking, 0)); /* any question to the legacy stream would end its capture */
	CUDA(CtxSynchronize());
	for (int mode = 0; mode < 3; mode++) {
		capture(stream, mode, park_meanwhile);
		capture(blocking, mode, park_meanwhile);
	}
	PAGE_UNTIL(page.captures == 0);

	/* Begun at any moment of the mover's look.  */
	thread_start(&thread, capture_again_and_again, stream);
	while (parks + refused < ROUNDS || parks < 3 || refused < 3) {
		int status = controller_move(AFFINODE_COMMAND_PARK);

		CHECK(status == AFFINODE_OK || status == AFFINODE_BUSY || status == AFFINODE_REVOKED);
		if (status == AFFINODE_OK)
			CHECK_RESUMES();
		parks += status == AFFINODE_OK;
		refused += status != AFFINODE_OK;
	}
	atomic_store(&stop, true);
	thread_join(thread);
	CHECK(captured > 0);
	ended_by_its_other_name();
	CHECK_EQUAL(controller_heartbeats(), 0); /* they are due when nothing else was said for long */
	CHECK(holds_pattern(block, MiB(2), 71, 0));
	printf("%u captures, %u parks, %u refused\n", captured, parks, refused);
	return 0;
}
