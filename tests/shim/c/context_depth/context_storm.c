/* Threads call everything at random while the process goes off the GPU and comes back, at random too: nothing hangs, no call
 * fails, every thread's current context is what it set, and the contents are right.  */
#include "depth.h"
#include "grown_up.h"

#define THREADS 4
#define BYTES MiB(2)

#define PAUSE_US 60000u

static _Atomic bool stop;
/* At the most; longer with each try for which a process was at work, until the process goes, however slow the machine is.  */
static _Atomic unsigned pause_us = PAUSE_US;
static CUresult (*pop)(CUcontext *), (*push)(CUcontext);
static CUresult (*stream_get_flags)(CUstream, unsigned int *);

struct worker {
	CUdeviceptr block;
	CUstream stream;
	uint32_t added;
	uint64_t state;
};

static void expect(CUcontext context)
{
	CUcontext current = (CUcontext)1;

	CUDA(CtxGetCurrent(&current));
	CHECK(current == context);
}

static void step(struct worker *w)
{
	CUdeviceptr start;
	size_t free_bytes, total;
	unsigned int flags;
	CUcontext popped;
	CUevent event;

	switch (test_random(&w->state) % 12) {
	case 0:
		CHECK_EQUAL(launch_add(w->stream, w->block, BYTES, 3), CUDA_SUCCESS);
		w->added += 3;
		break;
	case 1:
		CUDA(StreamSynchronize(w->stream));
		break;
	case 2:
		CUDA(CtxSetCurrent(NULL));
		expect(NULL);
		CUDA(CtxSetCurrent(cuda_context));
		break;
	case 3:
		CHECK_EQUAL(push(cuda_context), CUDA_SUCCESS);
		expect(cuda_context);
		CHECK_EQUAL(pop(&popped), CUDA_SUCCESS);
		CHECK(popped == cuda_context);
		break;
	case 4:
		CUDA(MemGetInfo(&free_bytes, &total));
		break;
	case 5:
		CUDA(PointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, w->block + 7));
		CHECK(start == w->block);
		break;
	case 6:
		CUDA(EventCreate(&event, 0));
		CUDA(EventRecord(event, w->stream));
		CUDA(EventSynchronize(event));
		CUDA(EventDestroy(event));
		break;
	case 7:
		CUDA(MemAlloc(&start, 512));
		CUDA(MemFree(start));
		break;
	case 8:
		CUDA(MemAlloc(&start, MiB(2)));
		CUDA(MemFree(start));
		break;
	case 9:
		CHECK_EQUAL(stream_get_flags(w->stream, &flags), CUDA_SUCCESS);
		break;
	default:
		/* a pause, in which it may be parked, on one side or the other of the context's going */
		CUDA(CtxSetCurrent(test_random(&w->state) % 2 ? cuda_context : NULL));
		usleep((useconds_t)(test_random(&w->state) % atomic_load(&pause_us)));
		CUDA(CtxSetCurrent(cuda_context));
	}
	expect(cuda_context);
}

static void *work(void *argument)
{
	struct worker *w = argument;

	CUDA(CtxSetCurrent(cuda_context));
	CUDA(MemAlloc(&w->block, BYTES));
	CUDA(StreamCreate(&w->stream, 1));
	CHECK_EQUAL(launch_pattern(w->stream, w->block, BYTES, 5), CUDA_SUCCESS);
	while (!atomic_load(&stop))
		step(w);
	CUDA(StreamSynchronize(w->stream));
	CHECK(holds_pattern(w->block, BYTES, 5, w->added));
	return NULL;
}

/* Until every worker pauses at once, again and again, to the end of patience: parks are refused while they work.  */
static unsigned rounds_of(uint64_t until)
{
	unsigned deep = 0;

	while (deep < test_rounds(18) && (deep == 0 || test_now_ns() < until)) {
		struct affinode_reply reply = park_deep();

		if (reply.status == AFFINODE_OK && page_read().depth == AFFINODE_DEPTH_CONTEXT) {
			deep++;
			atomic_store(&pause_us, PAUSE_US);
		} else if (atomic_load(&pause_us) < 40 * PAUSE_US) {
			atomic_fetch_add(&pause_us, atomic_load(&pause_us) / 32);
		}
		if (reply.status == AFFINODE_OK || page_read().state != AFFINODE_STATE_RESIDENT) {
			int status;

			/* Nothing: a park that came to nothing has brought back what it took by now. */
			while ((status = controller_move(AFFINODE_COMMAND_RESUME)) != AFFINODE_OK &&
			       status != AFFINODE_NOTHING)
				CHECK_EQUAL(status, AFFINODE_BUSY);
		}
		test_pause();
	}
	return deep;
}

int main(int argc, char **argv)
{
	struct worker workers[THREADS] = {0};
	pthread_t threads[THREADS];
	unsigned deep;

	test_begin(argc, argv, 120);
	depth_ask();
	cuda_start_grown_up();
	*(void **)&pop = cuda_symbol("cuCtxPopCurrent_v2");
	*(void **)&push = cuda_symbol("cuCtxPushCurrent_v2");
	*(void **)&stream_get_flags = cuda_symbol("cuStreamGetFlags");
	controller_accept();
	for (int i = 0; i < THREADS; i++) {
		workers[i].state = test_seed + (uint64_t)i;
		thread_start(&threads[i], work, &workers[i]);
	}
	deep = rounds_of(test_now_ns() + 30000000000u);
	atomic_store(&stop, true);
	for (int i = 0; i < THREADS; i++)
		thread_join(threads[i]);
	printf("off the GPU %u times\n", deep);
	CHECK(deep > 0);
	return 0;
}
