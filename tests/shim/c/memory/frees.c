/* Frees never wait, at whatever moment of park and resume they come, and take nothing from their neighbours.  */
#include "harness.h"

#define BLOCKS 24

struct held {
	CUdeviceptr at;
	size_t bytes;
	uint32_t seed;
};

static struct held held[BLOCKS];
static pthread_mutex_t held_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool stop;
static _Atomic uint64_t longest_ns, frees;
static uint64_t random_state;

static void allocate(struct held *block)
{
	block->bytes = MiB(2) + test_random(&random_state) % 8 * 65536;
	block->seed = (uint32_t)test_random(&random_state);
	CUDA(MemAlloc(&block->at, block->bytes));
	CHECK_EQUAL(launch_pattern(NULL, block->at, block->bytes, block->seed), CUDA_SUCCESS);
}

static void *free_at_random(void *unused)
{
	uint64_t random = test_seed + 1;

	(void)unused;
	while (!atomic_load(&stop)) {
		unsigned i = (unsigned)(test_random(&random) % BLOCKS);
		CUdeviceptr at;

		pthread_mutex_lock(&held_lock);
		at = held[i].at;
		held[i].at = 0;
		pthread_mutex_unlock(&held_lock);
		if (at) {
			uint64_t begin = test_now_ns(), took;

			CUDA(MemFree(at));
			took = test_now_ns() - begin;
			atomic_fetch_add(&frees, 1);
			if (took > atomic_load(&longest_ns))
				atomic_store(&longest_ns, took);
		}
		usleep((unsigned)(test_random(&random) % 1500));
	}
	return NULL;
}

/* What was freed in the moment between the mover's last look and the opening of the gate goes with the next free.  */
static void allocate_and_free(void)
{
	CUdeviceptr at;

	CUDA(MemAlloc(&at, MiB(2)));
	CUDA(MemFree(at));
}

int main(int argc, char **argv)
{
	CUdeviceptr stays; /* so that there is always something to park */
	pthread_t thread;

	cuda_begin(argc, argv, 60);
	random_state = test_seed;
	CUDA(MemAlloc(&stays, MiB(2)));

	thread_start(&thread, free_at_random, NULL);
	for (unsigned round = 0; round < test_rounds(9); round++) {
		pthread_mutex_lock(&held_lock);
		for (int i = 0; i < BLOCKS; i++)
			if (!held[i].at)
				allocate(&held[i]);
		CUDA(CtxSynchronize());
		pthread_mutex_unlock(&held_lock);
		controller_park();
		usleep((unsigned)(test_random(&random_state) % 3000));
		CHECK_RESUMES();
		pthread_mutex_lock(&held_lock);
		for (int i = 0; i < BLOCKS; i++)
			CHECK(!held[i].at || holds_pattern(held[i].at, held[i].bytes, held[i].seed, 0));
		pthread_mutex_unlock(&held_lock);
	}
	atomic_store(&stop, true);
	thread_join(thread);
	printf("%llu frees, the longest %.1f ms\n", (unsigned long long)frees, (double)longest_ns / 1e6);
	CHECK(frees > test_rounds(9));
	CUDA(MemFree(stays));

	/* What was freed while parked is given back: the whole device can be had again.  */
	allocate_and_free();
	size_t before = cuda_free_bytes();
	int status;

	for (int i = 0; i < BLOCKS; i++)
		before += held[i].at ? (held[i].bytes + MiB(2) - 1) / MiB(2) * MiB(2) : 0;
	do
		status = controller_move(AFFINODE_COMMAND_PARK);
	while (status == AFFINODE_BUSY); /* this machine is too slow for the mover's patience */
	CHECK(status == AFFINODE_OK || !page_read().gpus[0].resident_bytes);
	for (int i = 0; i < BLOCKS; i++)
		if (held[i].at)
			CUDA(MemFree(held[i].at));
	PAGE_UNTIL(page.gpus[0].parked_bytes == 0);
	controller_move(AFFINODE_COMMAND_RESUME);
	allocate_and_free();
	CHECK_EQUAL(cuda_free_bytes(), before);
	return 0;
}
