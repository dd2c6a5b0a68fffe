/* Restore loses a process that meets a full GPU: it is not called there. Whatever took the memory, whether a controller says
 * resume or the process comes back alone, it stays parked until there is room, and then nothing is missing. And a step of
 * the driver's that fails is taken again.  */
#include "depth.h"
#include "neighbour.h"

#include <fcntl.h>

#define BYTES MiB(16)

static CUdeviceptr block, small;

static void stays_parked_while_full(uint64_t spare)
{
	struct neighbour neighbour;

	park_deep_surely();
	neighbour = neighbour_start(spare);
	for (int i = 0; i < 3; i++) {
		struct affinode_reply reply = controller_reply(controller_command(AFFINODE_COMMAND_RESUME, 0));

		CHECK_EQUAL(reply.status, AFFINODE_NO_GPU_ROOM);
		CHECK(strstr(reply.text, "the GPU is full") != NULL);
		CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
		CHECK_EQUAL(page_read().depth, AFFINODE_DEPTH_CONTEXT);
		CHECK_EQUAL(gpu_processes(), 1);
	}
	neighbour_end(neighbour);
	CHECK_RESUMES();
	CHECK(holds_pattern(block, BYTES, 47, 0));
}

/* The lock is another's: it stays parked, however much is free.  */
static void stays_parked_without_the_lock(void)
{
	struct affinode_reply reply;
	int fd;

	park_deep_surely();
	fd = gpu_lock_take(NULL);
	reply = controller_reply(controller_command(AFFINODE_COMMAND_RESUME, 0));
	CHECK_EQUAL(reply.status, AFFINODE_NO_GPU_ROOM);
	CHECK_EQUAL(page_read().depth, AFFINODE_DEPTH_CONTEXT);
	gpu_lock_leave(fd);
	CHECK_RESUMES();
	CHECK(holds_pattern(block, BYTES, 47, 0));
}

/* Its process stood still behind the look, as one that was stopped, and the memory went meanwhile: it looks again.  */
static void an_old_look_is_not_believed(void)
{
	struct neighbour neighbour;
	char held[160];
	uint64_t since;
	uint32_t epoch;
	int fd;

	park_deep_surely();
	fd = open(getenv("AFFINODE_SIM_NVML_HOLD"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	close(fd);
	snprintf(held, sizeof(held), "%s.held", getenv("AFFINODE_SIM_NVML_HOLD"));
	epoch = controller_command(AFFINODE_COMMAND_RESUME, 0);
	UNTIL(access(held, F_OK) == 0);
	since = test_now_ns();
	neighbour = neighbour_start(0);
	UNTIL(test_now_ns() > since + 1200000000ull);
	CHECK_EQUAL(unlink(held), 0);
	CHECK_EQUAL(controller_reply(epoch).status, AFFINODE_NO_GPU_ROOM);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	CHECK_EQUAL(page_read().depth, AFFINODE_DEPTH_CONTEXT);
	neighbour_end(neighbour);
	CHECK_RESUMES();
	CHECK(holds_pattern(block, BYTES, 47, 0));
}

static void allocate(void)
{
	CUdeviceptr at;

	CUDA(CtxSetCurrent(cuda_context));
	CUDA(MemAlloc(&at, MiB(8)));
	CUDA(MemFree(at));
}

/* The lock's file was removed, as folders are cleaned up, and belongs to another process by now, which restores.  */
static void a_removed_lock_is_noticed(void)
{
	struct call call;
	int fd;

	CUDA(MemAlloc(&small, MiB(8))); /* with the file that was */
	gpu_lock_replace();
	fd = gpu_lock_take(NULL);
	call_begin(&call, allocate);
	CHECK(call_waits(&call));
	gpu_lock_leave(fd);
	call_end(&call);
	CUDA(MemFree(small));
}

/* The driver says no before it did anything (Restore), or after it did half (Unlock).  */
static void a_step_that_fails_is_taken_again(void)
{
	park_deep_surely(); /* 1st Restore and Unlock that fail: see main */
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_FAILED);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	CHECK_EQUAL(page_read().depth, AFFINODE_DEPTH_CONTEXT);
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_FAILED);
	CHECK_EQUAL(page_read().depth, AFFINODE_DEPTH_CONTEXT);
	CHECK_RESUMES();
	CHECK(holds_pattern(block, BYTES, 47, 0));
}

static void alone(void)
{
	struct neighbour neighbour;
	pthread_t thread;

	park_deep_surely();
	neighbour = neighbour_start(MiB(256));
	controller_stop();
	read_a_word(&thread, block);
	UNTIL(resumes_without_room() >= 10); /* 8 before, 2 alone */
	CHECK_EQUAL(atomic_load(&word_read), -1);
	CHECK_EQUAL(page_read().depth, AFFINODE_DEPTH_CONTEXT);
	neighbour_end(neighbour);
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&word_read), CUDA_SUCCESS);
	CHECK(holds_pattern(block, BYTES, 47, 0));
}

int main(int argc, char **argv)
{
	char hold[128];

	test_begin(argc, argv, 100);
	neighbour_main();
	log_begin();
	snprintf(hold, sizeof(hold), "%s/nvml", getenv("AFFINODE_SIM_DIR"));
	setenv("AFFINODE_SIM_NVML_HOLD", hold, 1);
	setenv("AFFINODE_SIM_FAULTS", "cuCheckpointProcessRestore:OPERATING_SYSTEM:1,cuCheckpointProcessUnlock:UNKNOWN:1", 1);
	depth_ask();
	cuda_start();
	unsetenv("AFFINODE_SIM_FAULTS");
	controller_accept();
	block = cuda_block(BYTES, 47);
	a_step_that_fails_is_taken_again();
	a_removed_lock_is_noticed();
	stays_parked_while_full(0);
	stays_parked_while_full(MiB(1900)); /* enough for all of it, and too little to be sure */
	stays_parked_without_the_lock();
	an_old_look_is_not_believed();
	alone();
	return 0;
}
