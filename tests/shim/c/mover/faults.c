/* The driver fails at any one step of park or resume, once or from then on: afterwards the process is resident or parked,
 * with its contents, and moves again as soon as the driver works.  */
#include <dlfcn.h>

#include "harness.h"

#define BLOCKS 2
#define PLACES (BLOCKS + 2) /* the last two: one allocation of the application's own, mapped twice */
#define BYTES MiB(2)
#define UNKNOWN 999

static const char *(*failing_name)(unsigned i);
static void (*failing_arm)(unsigned i, unsigned nth, int with, int for_good);
static unsigned (*failing_disarm)(void);

static CUdeviceptr places[PLACES];
static uint32_t added; /* to the first one's words */

static void set_up(void)
{
	CUmemGenericAllocationHandle handle;

	*(void **)&failing_name = cuda_in_front("failing_name");
	*(void **)&failing_arm = cuda_in_front("failing_arm");
	*(void **)&failing_disarm = cuda_in_front("failing_disarm");
	cuda_start();
	controller_accept();
	for (int i = 0; i < BLOCKS; i++)
		CUDA(MemAlloc(&places[i], BYTES));
	CUDA(MemCreate(&handle, BYTES, &cuda_prop, 0));
	for (int i = BLOCKS; i < PLACES; i++)
		places[i] = cuda_map(handle, BYTES);
	for (unsigned i = 0; i <= BLOCKS; i++)
		CHECK_EQUAL(launch_pattern(NULL, places[i], BYTES, i), CUDA_SUCCESS);
	CUDA(CtxSynchronize());
}

/* So that a park has something to copy.  */
static void change(void)
{
	CHECK_EQUAL(launch_add(NULL, places[0], BYTES, 1), CUDA_SUCCESS);
	CUDA(CtxSynchronize());
	added++;
}

static void contents_are_right(void)
{
	for (unsigned i = 0; i < PLACES; i++)
		CHECK(holds_pattern(places[i], BYTES, i < BLOCKS ? i : BLOCKS, i ? 0 : added));
}

/* Park, and resume, with the fault in one of the two; whether it was met.  */
static bool cycle(uint32_t at, unsigned function, unsigned nth, int error, bool for_good)
{
	unsigned met = 0;
	int status;

	change();
	if (at == AFFINODE_COMMAND_RESUME) {
		controller_park();
	} else {
		do {
			failing_arm(function, nth, error, for_good);
			status = controller_move(AFFINODE_COMMAND_PARK);
			met = failing_disarm();
		} while (status == AFFINODE_BUSY && met == 0); /* this machine is too slow for the mover's patience */
		if (status != AFFINODE_OK) {
			if (met == 0)
				test_fail(__FILE__, __LINE__, "refused without a fault", status);
			CHECK_EQUAL(page_read().state, AFFINODE_STATE_RESIDENT);
			contents_are_right();
			return true;
		}
	}
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	if (at == AFFINODE_COMMAND_RESUME)
		failing_arm(function, nth, error, for_good);
	status = controller_move(AFFINODE_COMMAND_RESUME);
	if (at == AFFINODE_COMMAND_RESUME) {
		met = failing_disarm();
		if (status != AFFINODE_OK) {
			CHECK(met > 0);
			CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
			if (error == CUDA_ERROR_OUT_OF_MEMORY)
				CHECK(status == AFFINODE_NO_GPU_ROOM || status == AFFINODE_FAILED);
			status = controller_move(AFFINODE_COMMAND_RESUME);
		}
	}
	CHECK_EQUAL(status, AFFINODE_OK);
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

	test_begin(argc, argv, 60);
	set_up();
	for (unsigned function = 0; failing_name(function); function++) {
		unsigned before = faults;

		for (uint32_t at = AFFINODE_COMMAND_PARK; at <= AFFINODE_COMMAND_RESUME; at++)
			for (int how = 0; how < 3; how++)
				for (unsigned nth = 1; nth < 40; nth = next_call(nth)) {
					int error = how ? UNKNOWN : CUDA_ERROR_OUT_OF_MEMORY;

					if (!cycle(at, function, nth, error, how == 2))
						break;
					faults++;
				}
		if (faults == before)
			test_fail(__FILE__, __LINE__, failing_name(function), 0);
	}
	printf("%u faults\n", faults);
	return 0;
}
