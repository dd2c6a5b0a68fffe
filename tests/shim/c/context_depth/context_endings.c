/* A process whose CUDA context is off the GPU ends in time and in its own way: told to or by itself, with room to come back
 * or without, although destructors call a driver that does not come back; killed at any moment it leaves nothing behind. A
 * child that it forked meanwhile is refused, not held.  */
#include "board.h"
#include "depth.h"
#include "grown_up.h"
#include "neighbour.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

#define BYTES MiB(48)

enum ending { EXIT, EXIT_ON_A_FULL_GPU, EXIT_ANNOUNCED, EXIT_ANNOUNCED_LATE, EXIT_WHILE_GOING, KILL, KILL_WHILE_GOING, KILL_WHILE_COMING, ENDINGS };

static CUdeviceptr block;
static CUresult (*hidden)(void);
static bool ended_while_going, announced;

/* What PyTorch does for what it frees. Contents it cannot have.  */
static void ends_quietly(void)
{
	char word[4];
	CUevent event;

	CUDA(EventCreate(&event, 0));
	CUDA(EventRecord(event, NULL));
	CUDA(EventQuery(event));
	CUDA(EventDestroy(event));
	CHECK(cu.MemcpyDtoH(word, block, sizeof(word)) != CUDA_SUCCESS);
	CUDA(MemFree(block));
}

/* As a library's that came by a private table, or the driver's own.  */
static void destructor(void)
{
	CUstream stream;

	if (announced)
		ends_quietly();
	if (ended_while_going) { /* in the midst of the driver's checkpoint, which does not end here */
		cu.CtxDisablePeerAccess(cuda_context);
		cu.DevicePrimaryCtxReset(0);
		cu.CtxDestroy(cuda_context);
	}
	cu.MemFree(block);
	cu.CtxSynchronize();
	if (cu.StreamCreate(&stream, 0) == CUDA_SUCCESS)
		cu.StreamDestroy(stream);
	cu.DevicePrimaryCtxRelease(0);
	hidden();
}

/* Forked while the driver holds the parent: whatever it calls, it is told no and ends.  */
static void fork_refused(void)
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		CUcontext current;
		CUdeviceptr at;
		CUevent event;

		if (cu.MemAlloc(&at, MiB(2)) == CUDA_SUCCESS || cu.EventCreate(&event, 0) == CUDA_SUCCESS)
			_exit(1);
		cu.CtxGetCurrent(&current);
		cu.MemFree(block);
		cu.StreamQuery(NULL);
		_exit(42);
	}
	CHECK_EQUAL(waitpid(pid, &status, 0), pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
}

#ifndef SHIM_LINKED
static void nothing(int number)
{
	(void)number;
}

/* As a profiler's, or a program's own: whatever waits is interrupted, and waits on.  */
static void be_interrupted(void)
{
	struct itimerval often = {{0, 30000}, {0, 30000}};
	struct sigaction action = {.sa_handler = nothing, .sa_flags = SA_RESTART};

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
}
#endif

static void child(void)
{
	char byte;

	CHECK_EQUAL(dup2(TALK_FD, STDOUT_FILENO), STDOUT_FILENO);
	atexit(destructor); /* before the driver comes: it runs when everything of CUDA's has ended */
	*(void **)&hidden = cuda_hidden("cuCtxSynchronize");
	cuda_start_grown_up();
	block = cuda_block(BYTES, 3);
	CHECK_EQUAL(read(TALK_FD, &byte, 1), 1);
	ended_while_going = byte == 2;
	announced = byte == 3;
	if (byte == 1) {
		fork_refused();
#ifndef SHIM_LINKED /* there it leaves sooner, with nothing to interrupt it */
		be_interrupted();
#endif
	}
	if (byte == 4) /* as Python's destructors, which run before exit */
		ends_quietly();
	printf("flushed by exit");
	exit(42);
}

static uint64_t random_state;

/* Parked, and the driver at work. A machine that is too slow for the mover's patience is told BUSY, once more then.  */
static void begin_to_go(void)
{
	uint32_t park;

	do {
		park = controller_command(AFFINODE_COMMAND_PARK, AFFINODE_MOVE_CONTEXT);
		UNTIL((controller_pump(), page_read().state == AFFINODE_STATE_PARKED || controller_replied(park)));
	} while (page_read().state != AFFINODE_STATE_PARKED);
}

/* Until the board changes, in the midst of the driver's checkpoint.  */
static void hold_on_the_way_out(void)
{
	uint32_t park;

	do {
		PAGE_UNTIL(page.state != AFFINODE_STATE_PARKING); /* a park that was answered for being late goes on to its end */
		if (page_read().state != AFFINODE_STATE_RESIDENT)
			CHECK_RESUMES();
		board_arm("cuCheckpointProcessCheckpoint:HOLD:1");
		park = controller_command(AFFINODE_COMMAND_PARK, AFFINODE_MOVE_CONTEXT);
	} while (!board_holds_in(park));
}

static void one(enum ending ending)
{
	struct neighbour neighbour;
	char text[64] = "", byte = ending == EXIT_ON_A_FULL_GPU ? 1 : ending == EXIT_WHILE_GOING ? 2 :
			       ending == EXIT_ANNOUNCED ? 3 : ending == EXIT_ANNOUNCED_LATE ? 4 : 0;
	bool killed = ending >= KILL;
	int talk;
	pid_t pid = child_start_talking("child", &talk);

	controller_accept();
	PAGE_UNTIL(page.gpus[0].resident_bytes == BYTES && page.calls_in_flight == 0);
	test_at("ending %d", ending);
	park_deep_surely();
	CHECK_EQUAL(gpu_used_bytes(), 0);
	if (ending == KILL_WHILE_GOING) {
		CHECK_RESUMES();
		begin_to_go();
	}
	if (ending == KILL_WHILE_COMING)
		controller_command(AFFINODE_COMMAND_RESUME, 0);
	if (ending == EXIT_ON_A_FULL_GPU || ending == EXIT_ANNOUNCED_LATE)
		neighbour = neighbour_start(0);
	if (ending == EXIT_WHILE_GOING)
		hold_on_the_way_out();
	if (ending == EXIT_ANNOUNCED)
		controller_command(AFFINODE_COMMAND_DYING, 0);
	if (ending == KILL_WHILE_GOING || ending == KILL_WHILE_COMING)
		usleep((unsigned)(test_random(&random_state) % 60000));
	if (killed)
		kill(pid, SIGKILL);
	else
		CHECK_EQUAL(write(talk, &byte, 1), 1);
	if (ending == EXIT_ANNOUNCED_LATE) { /* a destructor's call waits for the GPU by then */
		PAGE_UNTIL(page.want > 0);
		controller_command(AFFINODE_COMMAND_DYING, 0);
	}
	CHECK_EQUAL(child_wait(pid), killed ? 128 + SIGKILL : 42);
	if (!killed) {
		CHECK(read(talk, text, sizeof(text) - 1) > 0);
		CHECK(strstr(text, "flushed by exit") != NULL);
	}
	if (ending == EXIT_WHILE_GOING)
		board_disarm();
	if (ending == EXIT_ON_A_FULL_GPU || ending == EXIT_ANNOUNCED_LATE)
		neighbour_end(neighbour);
	close(talk);
	CHECK_EQUAL(gpu_processes(), 0);
	CHECK_EQUAL(gpu_used_bytes(), 0);
}

int main(int argc, char **argv)
{
	setenv("AFFINODE_SIM_COPY_RATE", "1GiB", 1); /* checkpoint and restore take 60 ms */
	test_begin(argc, argv, 140);
	depth_ask();
	neighbour_main();
	if (test_role)
		child();
	board_make();
	random_state = test_seed;
	for (enum ending ending = 0; ending < ENDINGS; ending++) {
#ifdef SHIM_LINKED /* sanitizers have nothing to find in the exiting thread's wait */
		if (ending == EXIT_WHILE_GOING)
			continue;
#endif
		one(ending);
	}
	return 0;
}
