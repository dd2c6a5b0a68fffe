/* Many threads compute, copy, allocate and free while the process is parked and resumed again and again: every word is
 * what it would be without.  */
#include <time.h>

#include "harness.h"

#define THREADS 5
#define CYCLES 12
#define FEWEST 3 /* cycles, on a machine that is too busy for all within LONG_S */
#define LONG_S 40
#define BLOCK MiB(2)

static _Atomic bool stop;
static _Atomic unsigned calm; /* rises when a park is due: every thread rests once, for as long as it likes */
static _Atomic unsigned rounds[THREADS];

static void *compute(void *argument)
{
	unsigned me = (unsigned)(uintptr_t)argument;
	uint64_t random = test_seed + me;
	uint32_t added = 0;
	unsigned rested = 0;
	CUdeviceptr kept, passing;
	CUstream stream;

	CUDA(CtxSetCurrent(cuda_context));
	CUDA(StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CUDA(MemAlloc(&kept, BLOCK));
	CHECK_EQUAL(launch_pattern(stream, kept, BLOCK, me), CUDA_SUCCESS);
	while (!atomic_load(&stop)) {
		uint32_t addend = (uint32_t)test_random(&random);

		CHECK_EQUAL(launch_add(stream, kept, BLOCK, addend), CUDA_SUCCESS);
		added += addend;
		CUDA(StreamSynchronize(stream));
		if (test_random(&random) % 4 == 0) {
			CUDA(MemAlloc(&passing, BLOCK));
			CUDA(MemcpyDtoD(passing, kept, BLOCK));
			CHECK(holds_pattern(passing, BLOCK, me, added));
			CUDA(MemFree(passing));
		}
		if (test_random(&random) % 8 == 0)
			CHECK(holds_pattern(kept, BLOCK, me, added));
		atomic_fetch_add(&rounds[me], 1);
		if (rested != atomic_load(&calm)) {
			rested = atomic_load(&calm);
			usleep(20000 + (unsigned)(test_random(&random) % 80000));
		}
	}
	CHECK(holds_pattern(kept, BLOCK, me, added));
	CUDA(MemFree(kept));
	CUDA(StreamDestroy(stream));
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	unsigned parked = 0, tries = 0;
	time_t enough;

	cuda_begin(argc, argv, 60);
	for (unsigned i = 0; i < THREADS; i++)
		thread_start(&threads[i], compute, (void *)(uintptr_t)i);
	for (unsigned i = 0; i < THREADS; i++)
		UNTIL(atomic_load(&rounds[i]) > 0);
	enough = time(NULL) + LONG_S;
	while (parked < CYCLES && (parked < FEWEST || time(NULL) < enough)) {
		unsigned seen = atomic_load(&rounds[0]);
		int status;

		atomic_fetch_add(&calm, 1);
		status = controller_move(AFFINODE_COMMAND_PARK);
		CHECK(status == AFFINODE_OK || status == AFFINODE_BUSY || status == AFFINODE_REVOKED);
		tries++;
		if (status != AFFINODE_OK) {
			UNTIL(atomic_load(&rounds[0]) > seen);
			continue;
		}
		parked++;
		PAGE_UNTIL(page.want >= 1);
		CHECK_RESUMES();
	}
	atomic_store(&stop, true);
	for (unsigned i = 0; i < THREADS; i++)
		thread_join(threads[i]);
	printf("%u parks of %u tries\n", parked, tries);
	return 0;
}
