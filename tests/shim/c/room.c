/* An allocation that meets a full GPU asks for room before anyone sees it: granted, denied, cancelled, and with nobody
 * there to ask.  */
#include "harness.h"

static CUdeviceptr filler;
static _Atomic int result;
static CUdeviceptr got;

static void *allocate(void *bytes)
{
	CUDA(CtxSetCurrent(cuda_context));
	atomic_store(&result, cu.MemAlloc(&got, (size_t)(uintptr_t)bytes));
	return NULL;
}

static uint32_t ask(pthread_t *thread, size_t bytes)
{
	uint64_t asked;
	uint32_t number;

	atomic_store(&result, -1);
	thread_start(thread, allocate, (void *)(uintptr_t)bytes);
	number = controller_noticed(AFFINODE_NOTIFY_ROOM, &asked);
	CHECK_EQUAL(asked, bytes);
	PAGE_UNTIL(page.room_bytes == bytes);
	return number;
}

static void fill(void)
{
	size_t free_bytes, total;

	CUDA(MemGetInfo(&free_bytes, &total));
	CUDA(MemAlloc(&filler, free_bytes / MiB(2) * MiB(2)));
}

int main(int argc, char **argv)
{
	pthread_t thread;
	uint32_t number;
	uint64_t begin;

	setenv("AFFINODE_SIM_MEMORY", "256MiB", 1);
	test_begin(argc, argv, 40);
	cuda_start();
	controller_accept();
	CUDA(MemAlloc(&got, MiB(2)));
	CUDA(MemFree(got));
	fill();

	/* Denied: the program's own out-of-memory, and the request ends.  */
	number = ask(&thread, MiB(4));
	controller_answer_room(number, false);
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&result), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(controller_noticed(AFFINODE_NOTIFY_ROOM_END, NULL), number);

	/* Granted, but somebody was faster: asked again; then there is room.  */
	number = ask(&thread, MiB(4));
	controller_answer_room(number, true);
	uint32_t again = controller_noticed(AFFINODE_NOTIFY_ROOM, NULL);
	CHECK(again != number);
	CHECK_EQUAL(atomic_load(&result), -1);
	CUDA(MemFree(filler));
	controller_answer_room(again, true);
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&result), CUDA_SUCCESS);
	CHECK_EQUAL(controller_noticed(AFFINODE_NOTIFY_ROOM_END, NULL), number);
	CHECK_EQUAL(controller_noticed(AFFINODE_NOTIFY_ROOM_END, NULL), again);
	CHECK_EQUAL(launch_pattern(NULL, got, MiB(4), 11), CUDA_SUCCESS);
	CUDA(CtxSynchronize());
	fill();

	/* Interrupted while waiting for room.  */
	number = ask(&thread, MiB(4));
	begin = test_now_ns();
	controller_command(AFFINODE_COMMAND_CANCEL, 0);
	thread_join(thread);
	CHECK(test_now_ns() - begin < 1000000000u);
	CHECK_EQUAL(atomic_load(&result), CUDA_ERROR_DEVICE_UNAVAILABLE);

	/* Parked while it waits, resumed, and then served.  */
	CUdeviceptr before = got;
	number = ask(&thread, MiB(6));
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_PARK), AFFINODE_OK);
	controller_answer_room(number, true);
	PAGE_UNTIL(page.want == 1);
	CUDA(MemFree(filler));
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_OK);
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&result), CUDA_SUCCESS);
	CHECK(holds_pattern(before, MiB(4), 11, 0));
	fill();

	/* The controller goes while it waits and another comes: asked anew under the same number.  */
	number = ask(&thread, MiB(4));
	controller_drop();
	controller_accept();
	CHECK_EQUAL(controller_noticed(AFFINODE_NOTIFY_ROOM, NULL), number);
	/* And nobody comes: out of memory, but not for ever.  */
	begin = test_now_ns();
	controller_stop();
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&result), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(test_now_ns() - begin > 1000000000u);
	CHECK(test_now_ns() - begin < 6000000000u);
	CHECK(holds_pattern(before, MiB(4), 11, 0));
	return 0;
}
