/* A thread in a blocking call that waits for another thread, a callback that wants a lock held by a thread at the gate:
 * parking is refused or revoked before any of them goes on, and then everything runs on.  */
#include "board.h"
#include "harness.h"

static CUdeviceptr block;
static uint32_t *flag; /* the GPU waits until it is not 0 */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int stage;

static void park_is_refused(void)
{
	int status = controller_move(AFFINODE_COMMAND_PARK);

	CHECK(status == AFFINODE_BUSY || status == AFFINODE_REVOKED);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_RESIDENT);
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

/* One thread waits for the GPU, which waits for this one.  */
static void synchronise_waits_for_another_thread(CUstream stream)
{
	pthread_t thread;

	atomic_store(&stage, 0);
	__atomic_store_n(flag, 0, __ATOMIC_RELEASE);
	thread_start(&thread, wait_for_flag, stream);
	UNTIL(atomic_load(&stage) == 1);
	for (int i = 0; i < 3; i++)
		park_is_refused();
	CHECK(holds_pattern(block, 4096, 21, 0));
	__atomic_store_n(flag, 1, __ATOMIC_RELEASE);
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&stage), 2);
}

static void *release_then_go_on(void *handle)
{
	CUmemGenericAllocationHandle *own = handle;

	CUDA(CtxSetCurrent(cuda_context));
	CUDA(MemRelease(*own));
	__atomic_store_n(flag, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* Work on a stream that the shim never saw: only waiting for the whole context, behind the closed gate, shows it.  */
static void hidden_work(CUstream hidden)
{
	CUmemGenericAllocationHandle handle;
	pthread_t other;
	uint32_t epoch;

	CUDA(MemCreate(&handle, MiB(2), &cuda_prop, 0));
	__atomic_store_n(flag, 0, __ATOMIC_RELEASE);
	CHECK_EQUAL(launch_wait_flag(hidden, flag), CUDA_SUCCESS);
	park_is_refused();
	CHECK(holds_pattern(block, 4096, 21, 0));

	__atomic_store_n(flag, 1, __ATOMIC_RELEASE);
	CUDA(StreamSynchronize(hidden));

	/* A free that comes during that look must not wait for it to end: the freeing thread's next step ends it.  */
	__atomic_store_n(flag, 0, __ATOMIC_RELEASE);
	CHECK_EQUAL(launch_wait_flag(hidden, flag), CUDA_SUCCESS);
	for (;;) {
		board_arm("cuCtxSynchronize:TAKE=0:1"); /* that it is called is seen, and nothing else happens */
		epoch = controller_command(AFFINODE_COMMAND_PARK, 0);
		UNTIL(board_met() || (controller_pump() && controller_replied(epoch)));
		if (board_met())
			break; /* the gate is closed, for 100 ms */
		/* The look before had not ended yet: begin again.  */
		__atomic_store_n(flag, 1, __ATOMIC_RELEASE);
		CUDA(StreamSynchronize(hidden));
		__atomic_store_n(flag, 0, __ATOMIC_RELEASE);
		CHECK_EQUAL(launch_wait_flag(hidden, flag), CUDA_SUCCESS);
	}
	thread_start(&other, release_then_go_on, &handle);
	thread_join(other);
	CHECK_EQUAL(controller_reply(epoch).status, AFFINODE_BUSY);
	CUDA(StreamSynchronize(hidden));
}

static void callback(void *unused)
{
	(void)unused;
	atomic_store(&stage, 1);
	pthread_mutex_lock(&lock);
	pthread_mutex_unlock(&lock);
	atomic_store(&stage, 2);
}

static void *launch_with_lock(void *stream)
{
	CUDA(CtxSetCurrent(cuda_context));
	UNTIL(atomic_load(&stage) == 1); /* the callback stands before the lock, which is ours */
	for (int i = 0; i < 200; i++)
		CHECK_EQUAL(launch_add(stream, block, 4096, 0), CUDA_SUCCESS);
	pthread_mutex_unlock(&lock);
	return NULL;
}

/* The callback wants what a thread holds that may be at the gate.  */
static void *hold_lock(void *stream)
{
	pthread_mutex_lock(&lock);
	atomic_store(&stage, 0);
	CUDA(CtxSetCurrent(cuda_context));
	CUDA(LaunchHostFunc(stream, callback, NULL));
	return launch_with_lock(stream);
}

static void host_callback_wants_a_lock(CUstream stream)
{
	pthread_t thread;

	atomic_store(&stage, -1);
	thread_start(&thread, hold_lock, stream);
	UNTIL(atomic_load(&stage) >= 0);
	while (atomic_load(&stage) < 2) {
		int status = controller_move(AFFINODE_COMMAND_PARK);

		if (status == AFFINODE_OK)
			CHECK_RESUMES();
	}
	thread_join(thread);
	CUDA(StreamSynchronize(stream));
}

int main(int argc, char **argv)
{
	CUresult (*create_hidden)(CUstream *, unsigned int);
	CUstream stream, hidden;
	void *host;

	board_begin(argc, argv, 30);
	block = cuda_block(MiB(2), 21);
	CUDA(MemHostAlloc(&host, 4096, 0));
	flag = host;
	CUDA(StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	*(void **)&create_hidden = cuda_hidden("cuStreamCreate");
	CHECK_EQUAL(create_hidden(&hidden, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	CUDA(CtxSynchronize());
	synchronise_waits_for_another_thread(stream);
	for (int i = 0; i < 3; i++)
		hidden_work(hidden);
	host_callback_wants_a_lock(stream);
	controller_park();
	CHECK_RESUMES();
	CHECK(holds_pattern(block, MiB(2), 21, 0));
	return 0;
}
