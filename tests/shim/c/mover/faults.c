/* One function of the driver fails at its nth call in a park or a resume, once or from then on, while all others work: afterwards
 * the process is resident or parked, with its contents, and moves again as soon as the driver works. (steps/step_errors.c has calls
 * of any function.)  */
#include "board.h"
#include "contents.h"
#include "harness.h"

static const char *const functions[] = {
	"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync",
	"cuStreamSynchronize", "cuStreamQuery", "cuCtxSynchronize", "cuCtxSetCurrent", "cuThreadExchangeStreamCaptureMode"};
static const struct {
	const char *what, *plus;
} hows[] = {{"OUT_OF_MEMORY", ""}, {"UNKNOWN", ""}, {"UNKNOWN", "+"}};
#define COUNT(array) (sizeof(array) / sizeof(*(array)))

/* Park and resume, with the fault in one of the two; whether it was met.  */
static bool cycle(uint32_t at, const char *function, unsigned how, unsigned nth)
{
	unsigned met;
	int status;

	snprintf(test_step, sizeof(test_step), "%s, %s: %s at call %u%s", at == AFFINODE_COMMAND_PARK ? "park" : "resume",
		 function, hows[how].what, nth, hows[how].plus);
	CHECK_EQUAL(contents_change(CONTENTS_ONE_CHUNK), CUDA_SUCCESS); /* so that a park has something to copy */
	CUDA(CtxSynchronize());
	if (at == AFFINODE_COMMAND_RESUME)
		controller_park();
	do {
		board_arm("%s:%s:%u%s", function, hows[how].what, nth, hows[how].plus);
		status = controller_move(at);
		met = board_disarm();
	} while (status == AFFINODE_BUSY && met == 0); /* this machine is too slow for the mover's patience */
	CHECK(status == AFFINODE_OK || met > 0);
	CHECK_EQUAL(page_read().state, (at == AFFINODE_COMMAND_PARK) == (status == AFFINODE_OK) ? AFFINODE_STATE_PARKED
												: AFFINODE_STATE_RESIDENT);
	if (at == AFFINODE_COMMAND_RESUME && status != AFFINODE_OK && how == 0)
		CHECK(status == AFFINODE_NO_GPU_ROOM || status == AFFINODE_FAILED);
	if (page_read().state == AFFINODE_STATE_PARKED)
		CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_OK);
	contents_are_right();
	return met > 0;
}

/* The first, any of the next few, and every third from there; with TEST_STRIDE each in turn.  */
static unsigned next_call(unsigned nth)
{
	if (getenv("TEST_STRIDE"))
		return nth + 1;
	return nth + (nth == 1 ? 1 + (unsigned)(test_seed % 3) : 3);
}

int main(int argc, char **argv)
{
	unsigned faults = 0;

	test_begin(argc, argv, 140);
	board_make();
	cuda_start();
	controller_accept();
	contents_make();
	for (unsigned i = 0; i < COUNT(functions); i++) {
		unsigned before = faults;

		for (uint32_t at = AFFINODE_COMMAND_PARK; at <= AFFINODE_COMMAND_RESUME; at++)
			for (unsigned how = 0; how < COUNT(hows); how++)
				for (unsigned nth = 1; nth < 40 && cycle(at, functions[i], how, nth); nth = next_call(nth))
					faults++;
		if (faults == before)
			test_fail(__FILE__, __LINE__, functions[i], 0);
	}
	printf("%u faults\n", faults);
	return 0;
}
