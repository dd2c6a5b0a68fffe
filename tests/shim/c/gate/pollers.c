/* What a progress bar, a memory monitor or a poller asks is no sign of use; a launch is, and so is a synchronise that waits
 * for work, for as long as it waits, also beside a poller.  */
#include "harness.h"

#define LOOKS 8

static _Atomic bool done, spinning;
static _Atomic uint64_t rounds;
static uint32_t *flag;

static void *poll_often(void *stream)
{
	CUDA(CtxSetCurrent(cuda_context));
	while (!atomic_load(&done)) {
		CUresult asked = cu.StreamQuery(stream);

		CHECK(asked == CUDA_SUCCESS || asked == CUDA_ERROR_NOT_READY);
		cuda_free_bytes();
		CUDA(StreamSynchronize(stream)); /* a stream without work: it comes back at once */
		if (atomic_fetch_add(&rounds, 1) % 16 == 0)
			usleep(1000); /* sampling sees as much of one that takes a breath */
	}
	return NULL;
}

static void *wait_for_work(void *stream)
{
	CUDA(CtxSetCurrent(cuda_context));
	atomic_store(&spinning, true);
	CUDA(StreamSynchronize(stream));
	atomic_store(&spinning, false);
	return NULL;
}

/* Let the shim look at its counters, some times.  */
static void looked(int times)
{
	for (int i = 0; i < times; i++) {
		uint64_t before = page_read().heartbeat_ns;

		PAGE_UNTIL(page.heartbeat_ns > before);
	}
}

static uint64_t used_at(void)
{
	return page_read().last_activity_ns;
}

/* Until some looks in a row saw no use while the poller polled. On a machine that is so loaded that the poller is put
 * aside in the midst of a call for longer than a look, that one look may take it for one that waits.  */
static void wait_for_quiet(void)
{
	uint64_t before, asked;

	do {
		before = used_at();
		asked = atomic_load(&rounds);
		looked(LOOKS);
	} while (used_at() != before || atomic_load(&rounds) == asked);
}

int main(int argc, char **argv)
{
	CUstream asked, busy;
	CUdeviceptr block;
	pthread_t poller, waiter;
	uint64_t before;

	cuda_begin(argc, argv, 60);
	CUDA(StreamCreate(&asked, 1));
	CUDA(StreamCreate(&busy, 1));
	CUDA(MemHostAlloc((void **)&flag, 4096, 0));
	CUDA(MemAlloc(&block, MiB(4)));
	thread_start(&poller, poll_often, asked);
	wait_for_quiet();

	/* Work that another thread waits for.  */
	before = used_at();
	__atomic_store_n(flag, 0, __ATOMIC_RELEASE);
	CHECK_EQUAL(launch_wait_flag(busy, flag), CUDA_SUCCESS);
	PAGE_UNTIL(page.last_activity_ns > before);
	thread_start(&waiter, wait_for_work, busy);
	UNTIL(atomic_load(&spinning));
	looked(3); /* the launch was seen, and the waiting since */
	for (int i = 0; i < 3; i++) {
		uint64_t then = used_at();

		PAGE_UNTIL(page.last_activity_ns > then);
	}
	__atomic_store_n(flag, 1, __ATOMIC_RELEASE);
	thread_join(waiter);
	/* And the poller goes on, alone.  */
	wait_for_quiet();
	before = used_at();
	CHECK_EQUAL(launch_pattern(busy, block, MiB(4), 1), CUDA_SUCCESS);
	PAGE_UNTIL(page.last_activity_ns > before);

	/* A poller keeps no process on the GPU.  */
	CUDA(StreamSynchronize(busy));
	atomic_store(&done, true);
	thread_join(poller);
	controller_park();
	return 0;
}
