/* A process ends in time and in its own way at whatever moment of park and resume it does, announced or not, and leaves no
 * memory behind; one that is killed too.  */
#include "harness.h"

#include <signal.h>

#define BYTES MiB(12)

enum { RESIDENT, PARKING, PREPARED, PARKED, RESUMING, MOMENTS };

/* What a framework does when it ends: destructors that call CUDA in exit handlers registered at its start.  */
static CUdeviceptr block;

static void destructor(void)
{
	CUstream stream;

	cu.MemFree(block);
	cu.CtxSynchronize();
	if (cu.StreamCreate(&stream, 0) == CUDA_SUCCESS) /* waits at a closed gate unless the end was noticed */
		cu.StreamDestroy(stream);
	cu.DevicePrimaryCtxRelease(0);
}

static void child(void)
{
	char byte;

	cuda_start();
	atexit(destructor);
	block = cuda_block(BYTES, 3);
	CHECK_EQUAL(read(TALK_FD, &byte, 1), 1);
	exit(byte);
}

static uint64_t random_state;

/* One life: brought to the moment, told to end (announced or not) or killed, and gone.  */
static void one(int moment, bool announced, bool killed)
{
	char byte = 42;
	int talk;
	pid_t pid = child_start_talking("child", &talk);

	controller_accept();
	PAGE_UNTIL(page.gpus[0].resident_bytes == BYTES && page.calls_in_flight == 0);
	if (moment == PARKED || moment == RESUMING)
		while (controller_move(AFFINODE_COMMAND_PARK) != AFFINODE_OK)
			test_pause();
	if (moment == PARKING) {
		uint32_t park = controller_command(AFFINODE_COMMAND_PARK, 0);

		PAGE_UNTIL(page.state == AFFINODE_STATE_PARKING || controller_replied(park)); /* seen too late, or given up */
	}
	if (moment == PREPARED)
		while (!controller_prepared(controller_command(AFFINODE_COMMAND_PARK, AFFINODE_MOVE_PREPARE)))
			test_pause();
	if (moment == RESUMING)
		controller_command(AFFINODE_COMMAND_RESUME, 0);
	if (moment == PARKING || moment == RESUMING)
		usleep((unsigned)(test_random(&random_state) % 50000));
	if (announced)
		controller_command(AFFINODE_COMMAND_DYING, 0);
	if (killed)
		kill(pid, SIGKILL);
	else
		CHECK_EQUAL(write(talk, &byte, 1), 1);
	CHECK_EQUAL(child_wait(pid), killed ? 128 + SIGKILL : 42);
	close(talk);
}

int main(int argc, char **argv)
{
	size_t before;

	setenv("AFFINODE_SIM_COPY_RATE", "256MiB", 1); /* parking takes 50 ms */
	test_begin(argc, argv, 60);
	if (test_role)
		child();
	random_state = test_seed;
	setenv("AFFINODE_DISABLE", "1", 1);
	cuda_start();
	unsetenv("AFFINODE_DISABLE");
	before = cuda_free_bytes();
	for (int moment = 0; moment < MOMENTS; moment++)
		for (int how = 0; how < 3; how++)
			one(moment, how == 1, how == 2);
	CHECK_EQUAL(cuda_free_bytes(), before);
	return 0;
}
