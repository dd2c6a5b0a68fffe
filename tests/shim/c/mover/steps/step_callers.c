/* The program comes back at any one driver call of a park or of a resume: it launches, allocates, frees. What it does is
 * done once and is never lost; what it frees is given back; and its neighbours are left alone.  */
#include "board.h"
#include "contents.h"
#include "harness.h"

#define LOOK_NS 3000000u

enum meddling { LAUNCHES, OVERWRITES, ALLOCATES, FREES, UNMAPS, FREES_AND_ALLOCATES, MEDDLINGS };
static const char *const meddlings[] = {"launches", "overwrites", "allocates", "frees", "unmaps", "frees and allocates"};

static _Atomic bool done;
static size_t free_when_resident;
static unsigned outcomes[AFFINODE_PREPARED + 1];

static void *meddle(void *how)
{
	CUdeviceptr other;

	CUDA(CtxSetCurrent(cuda_context));
	switch ((enum meddling)(uintptr_t)how) {
	case LAUNCHES:
		CHECK_EQUAL(contents_change(CONTENTS_BROKEN), CUDA_SUCCESS);
		CHECK_EQUAL(contents_change(CONTENTS_MAPPED), CUDA_SUCCESS);
		break;
	case OVERWRITES:
		contents_fill(CONTENTS_ZERO_AMIDST);
		contents_fill(CONTENTS_ONE_CHUNK);
		break;
	case FREES_AND_ALLOCATES: /* what is freed while it is being copied is the mover's to end */
		contents_free(CONTENTS_ZERO_AMIDST);
		/* fall through */
	case ALLOCATES:
		CUDA(MemAlloc(&other, MiB(4)));
		CHECK_EQUAL(launch_pattern(NULL, other, MiB(4), 77), CUDA_SUCCESS);
		CHECK(holds_pattern(other, MiB(4), 77, 0));
		CUDA(MemFree(other));
		break;
	case FREES:
		contents_free(CONTENTS_ZERO_AMIDST);
		break;
	default:
		contents_free(CONTENTS_MAPPED);
	}
	atomic_store(&done, true);
	return NULL;
}

static void put_back(enum meddling how)
{
	if (how == FREES || how == FREES_AND_ALLOCATES)
		contents_allocate(CONTENTS_ZERO_AMIDST);
	if (how == UNMAPS)
		contents_allocate(CONTENTS_MAPPED);
	contents_are_right();
	UNTIL(cuda_free_bytes() == free_when_resident); /* a free that was put off goes with the shim's next call, or by itself */
}

/* Park and resume; the program meddles at that call of one of them. False: there is no such call.  */
static bool cycle(const struct move *at, enum meddling how, unsigned nth)
{
	pthread_t thread;
	uint32_t epoch;
	uint64_t begin;
	bool held;
	int status;

	test_at("%s, call %u, the program %s", at->name, nth, meddlings[how]);
	CUDA(CtxSynchronize());
	contents_make_ready(at);
	atomic_store(&done, false);
	board_arm("*:HOLD:%u", nth);
	epoch = controller_command(at->command, at->how);
	held = board_holds_in(epoch);
	if (held) {
		thread_start(&thread, meddle, (void *)(uintptr_t)how);
		/* Until it is through or waits at the gate; a free may wait for the mover, which cannot be seen.  */
		begin = test_now_ns();
		UNTIL(atomic_load(&done) || page_read().want || test_now_ns() - begin > LOOK_NS);
	}
	board_disarm();
	status = controller_reply(epoch).status;
	if (!held && status == AFFINODE_BUSY)
		return cycle(at, how, nth); /* this machine was too slow for the mover's patience */
	CHECK((unsigned)status <= AFFINODE_PREPARED);
	if (!held || at->command == AFFINODE_COMMAND_RESUME || at->of_rest) /* whose calls wait anyway */
		CHECK_EQUAL(status, AFFINODE_OK);
	else
		CHECK(status == AFFINODE_OK || status == AFFINODE_REVOKED || status == AFFINODE_BUSY);
	outcomes[status] += held;
	if (at->command == AFFINODE_COMMAND_PARK && status == AFFINODE_OK)
		CHECK_RESUMES();
	if (held)
		thread_join(thread);
	PAGE_UNTIL(page.state == AFFINODE_STATE_RESIDENT); /* what was given up in time is told of before it has ended */
	put_back(held ? how : LAUNCHES);
	return held;
}

int main(int argc, char **argv)
{
	contents_begin(argc, argv);
	contents_free(CONTENTS_ZERO_AMIDST);
	contents_allocate(CONTENTS_ZERO_AMIDST);
	contents_are_right();
	free_when_resident = cuda_free_bytes();
	for (const struct move *at = kinds_of_move; at < kinds_of_move + MOVES; at++)
		for (enum meddling how = 0; how < MEDDLINGS; how++)
			AT_EVERY_CALL(cycle(at, how, nth), "%s in a %s", meddlings[how], at->name);
	printf("%u went on, %u were revoked, %u found it busy\n", outcomes[AFFINODE_OK], outcomes[AFFINODE_REVOKED],
	       outcomes[AFFINODE_BUSY]);
	CHECK(outcomes[AFFINODE_REVOKED] > 0);
	return 0;
}
