/* Rounds of what may happen to a process, at random: moves in one step and in two, faults at any call, host memory given
 * and taken back, and the program freeing, allocating and computing in between, also while it is parked. After each round
 * a driver that works brings everything back, and nothing has leaked.  */
#include "board.h"
#include "contents.h"
#include "harness.h"

#define ROUNDS 150
#define CALLS 110 /* about as many as a move makes */

static const char *const faults[] = {"OUT_OF_MEMORY", "UNKNOWN", "INVALID_VALUE", "CORRUPT=1MiB", "TAKE=1TiB"};

static uint64_t state;
static size_t free_when_resident;
static bool is_freed[CONTENTS_BLOCKS];
static unsigned moves, failed, met;

static unsigned any(unsigned n)
{
	return (unsigned)(test_random(&state) % n);
}

/* A fault, or none. Copies out of the GPU are not corrupted: that could not be mended.  */
static void arm(uint32_t command)
{
	unsigned kind = any(2 * sizeof(faults) / sizeof(*faults));
	const char *name = "*", *plus = any(3) ? "" : "+";
	unsigned nth = 1 + any(CALLS);

	test_at("%s without a fault", command == AFFINODE_COMMAND_PARK ? "park" : "resume");
	if (kind >= sizeof(faults) / sizeof(*faults))
		return;
	if (!strncmp(faults[kind], "CORRUPT", 7))
		name = command == AFFINODE_COMMAND_RESUME && any(2) ? "cuMemcpyHtoDAsync" : "cuMemsetD32Async";
	nth = *name == '*' ? nth : nth % 6 + 1;
	board_arm("%s:%s:%u%s", name, faults[kind], nth, plus);
	test_at("%s, %s:%s:%u%s", command == AFFINODE_COMMAND_PARK ? "park" : "resume",
		name, faults[kind], nth, plus);
}

/* Where a real driver's streams cannot even be asked any more nothing runs in them. Here something still may.  */
static void let_work_end(void)
{
	CUresult (*set_current)(CUcontext), (*synchronise)(void);
	CUcontext contexts[] = {contents_other_context(), cuda_context};

	*(void **)&set_current = cuda_hidden("cuCtxSetCurrent");
	*(void **)&synchronise = cuda_hidden("cuCtxSynchronize");
	for (unsigned i = 0; i < 2; i++) {
		CHECK_EQUAL(set_current(contexts[i]), CUDA_SUCCESS);
		CHECK_EQUAL(synchronise(), CUDA_SUCCESS);
	}
}

static void disarm(void)
{
	size_t bytes, total;

	met += board_disarm();
	strncat(test_step, "; struck: ", sizeof(test_step) - strlen(test_step) - 1);
	strncat(test_step, board_struck(), sizeof(test_step) - strlen(test_step) - 1);
	if (strstr(board_struck(), "cuMemRelease ")) /* what the driver would not release it still has */
		free_when_resident = 0;
	let_work_end();
	board_arm("cuMemGetInfo:TAKE=0:1");
	CUDA(MemGetInfo(&bytes, &total));
	board_arm("%s", "");
}

static void move(uint32_t command)
{
	bool prepare = any(3) == 0;
	uint32_t epoch;
	int status;

	arm(command);
	epoch = controller_command(command, prepare ? AFFINODE_MOVE_PREPARE : 0);
	if (prepare && (any(4) == 0 || controller_prepared(epoch)))
		controller_decide(epoch, any(3) > 0);
	if (prepare && controller_prepared(epoch) && !controller_replied(epoch))
		controller_decide(epoch, true); /* what was said too early counts only if it was ABORT */
	status = controller_reply(epoch).status;
	CHECK(status == AFFINODE_OK || status == AFFINODE_NOTHING || controller_reply(epoch).text[0]);
	moves++;
	failed += status != AFFINODE_OK;
	disarm();
}

/* What passes a closed gate too, and what does not.  */
static void program(bool resident)
{
	unsigned i = any(CONTENTS_BLOCKS);

	if (any(4) == 0 && !is_freed[i]) {
		contents_free(i);
		is_freed[i] = true;
	} else if (resident && is_freed[i]) {
		contents_allocate(i);
		is_freed[i] = false;
	} else if (resident && any(2) && !is_freed[i]) {
		contents_fill(i);
	} else if (resident && !is_freed[CONTENTS_MAPPED]) {
		contents_change_now(CONTENTS_MAPPED);
	}
}

static void host_memory(void)
{
	if (any(4) == 0)
		controller_command(AFFINODE_COMMAND_TRIM, any(2) ? 0 : MiB(32));
	if (any(6) == 0)
		controller_lend(MiB(32) * (1 + any(2)));
}

static void settle(void)
{
	PAGE_UNTIL(page.state != AFFINODE_STATE_PARKING); /* answered as being late, a park goes on to its end */
	if (page_read().state != AFFINODE_STATE_RESIDENT)
		CHECK_RESUMES();
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_RESIDENT);
	contents_are_right();
	for (unsigned i = 0; i < CONTENTS_BLOCKS; i++)
		if (is_freed[i])
			contents_allocate(i);
	memset(is_freed, 0, sizeof(is_freed));
	if (free_when_resident)
		UNTIL(cuda_free_bytes() == free_when_resident);
	free_when_resident = cuda_free_bytes();
}

int main(int argc, char **argv)
{
	setenv("AFFINODE_SIM_GPUS", "2", 1);
	contents_begin(argc, argv);
	state = test_seed;
	contents_are_right();
	for (unsigned round = 0; round < ROUNDS / board_stride(); round++) {
		for (unsigned n = 1 + any(5); n; n--) {
			host_memory();
			program(page_read().state == AFFINODE_STATE_RESIDENT);
			move(page_read().state == AFFINODE_STATE_RESIDENT ? AFFINODE_COMMAND_PARK
									 : AFFINODE_COMMAND_RESUME);
		}
		settle();
	}
	printf("%u moves, %u of them not to their end, %u faults\n", moves, failed, met);
	CHECK(board_stride() > 1 || met > ROUNDS / 10); /* a few rounds may meet none */
	return 0;
}
