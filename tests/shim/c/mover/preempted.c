/* Preemption: a process that is at work loses the GPU at its next call, goes on where it was when it has its turn again, and
 * every word is right. What cannot come to rest within bounds is left alone: a captured graph, work that waits for a call.  */
#include "contents.h"
#include "harness.h"

static uint32_t *flag; /* the GPU waits until it is not 0 */
static _Atomic bool stop;
static _Atomic unsigned rounds;
static _Atomic int stage;

static void preempt(void)
{
	controller_park_with(AFFINODE_MOVE_PREEMPT);
}

/* Computes without a pause, as training does: asynchronous work, and now and then a wait for it.  */
static void *train(void *unused)
{
	(void)unused;
	CUDA(CtxSetCurrent(cuda_context));
	while (!atomic_load(&stop)) {
		CHECK_EQUAL(contents_change(CONTENTS_ONE_CHUNK), CUDA_SUCCESS);
		CHECK_EQUAL(contents_change(CONTENTS_BROKEN), CUDA_SUCCESS);
		if (atomic_fetch_add(&rounds, 1) % 8 == 0)
			CUDA(CtxSynchronize());
	}
	CUDA(CtxSynchronize());
	return NULL;
}

/* It never pauses, so an ordinary park does not get through; with MOVE_PREEMPT it is parked, many times.  */
static void taken_in_the_midst_of_work(void)
{
	pthread_t thread;
	unsigned before;

	atomic_store(&stop, false);
	thread_start(&thread, train, NULL);
	for (int turn = 0; turn < 8; turn++) {
		before = atomic_load(&rounds);
		UNTIL(atomic_load(&rounds) > before + 3);
		preempt();
		PAGE_UNTIL(page.state == AFFINODE_STATE_QUEUED && page.want); /* its next call wants the GPU back */
		CHECK(page_read().gpus[0].resident_bytes == 0);
		before = atomic_load(&rounds);
		controller_pump();
		CHECK_EQUAL(atomic_load(&rounds), before);
		CHECK_RESUMES();
	}
	atomic_store(&stop, true);
	thread_join(thread);
	contents_are_right();
}

/* Without a call: a preemption is a park like any other.  */
static void taken_while_idle(void)
{
	preempt();
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	CHECK_RESUMES();
	contents_are_right();
}

static void *wait_for_flag(void *stream)
{
	CUDA(CtxSetCurrent(cuda_context));
	CHECK_EQUAL(launch_wait_flag(stream, flag), CUDA_SUCCESS);
	atomic_store(&stage, 1);
	CUDA(StreamSynchronize(stream));
	atomic_store(&stage, 2);
	return NULL;
}

static void *call_then_set_flag(void *unused)
{
	(void)unused;
	CUDA(CtxSetCurrent(cuda_context));
	CHECK_EQUAL(contents_change(CONTENTS_ONE_CHUNK), CUDA_SUCCESS);
	__atomic_store_n(flag, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* One thread waits for the GPU, which waits for another that comes to the closed gate: it is opened again.  */
static void work_that_waits_for_a_call(CUstream stream)
{
	pthread_t waits, calls;
	uint32_t epoch;

	atomic_store(&stage, 0);
	__atomic_store_n(flag, 0, __ATOMIC_RELEASE);
	thread_start(&waits, wait_for_flag, stream);
	UNTIL(atomic_load(&stage) == 1);
	epoch = controller_command(AFFINODE_COMMAND_PARK, AFFINODE_MOVE_PREEMPT);
	thread_start(&calls, call_then_set_flag, NULL);
	thread_join(calls);
	thread_join(waits);
	if (controller_reply(epoch).status == AFFINODE_OK) /* they were done before it began */
		CHECK_RESUMES();
	contents_are_right();
}

static void captured_graphs_are_left_alone(CUstream stream)
{
	uint32_t epoch;
	CUgraph graph;

	CUDA(StreamBeginCapture(stream, 0));
	epoch = controller_command(AFFINODE_COMMAND_PARK, AFFINODE_MOVE_PREEMPT);
	CHECK_EQUAL(controller_reply(epoch).status, AFFINODE_BUSY);
	CUDA(StreamEndCapture(stream, &graph));
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_RESIDENT);
}

/* The controller is gone when it is parked with a call that waits: it comes back by itself.  */
static void nobody_is_there_to_bring_it_back(void)
{
	pthread_t thread;
	unsigned before;

	atomic_store(&stop, false);
	thread_start(&thread, train, NULL);
	preempt();
	controller_stop(); /* no listener, with which a link could wait that the shim has given up by the time of the accept */
	before = atomic_load(&rounds);
	UNTIL(atomic_load(&rounds) > before + 3);
	controller_start_again();
	atomic_store(&stop, true);
	thread_join(thread);
	contents_are_right();
}

int main(int argc, char **argv)
{
	CUstream stream;
	void *host;

	cuda_begin(argc, argv, 60);
	contents_make();
	CUDA(MemHostAlloc(&host, 4096, 0));
	flag = host;
	CUDA(StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	taken_while_idle();
	taken_in_the_midst_of_work();
	for (int i = 0; i < 3; i++)
		work_that_waits_for_a_call(stream);
	captured_graphs_are_left_alone(stream);
	nobody_is_there_to_bring_it_back();
	taken_while_idle();
	return 0;
}
