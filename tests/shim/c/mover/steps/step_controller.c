/* The controller is killed at any one driver call of a park or of a resume: the process is resident or parked, whole, and
 * the next controller finds it so. Where none comes, a process that wants its GPU gets it by itself.  */
#include "board.h"
#include "contents.h"
#include "harness.h"

/* The controller goes while the process is held at that call; false: the move has no such call.  */
static bool leave_at(const struct move *at, unsigned nth)
{
	uint32_t epoch;

	test_at("%s, call %u", at->name, nth);
	board_arm("*:HOLD:%u", nth);
	epoch = controller_command(at->command, at->how);
	if (!board_holds_in(epoch)) {
		board_disarm();
		if (controller_reply(epoch).status == AFFINODE_BUSY)
			return leave_at(at, nth); /* this machine was too slow for the mover's patience */
		CHECK_EQUAL(controller_reply(epoch).status, AFFINODE_OK);
		return false;
	}
	controller_stop();
	board_disarm();
	return true;
}

/* Whatever became of the move, or will: while it is under way another is refused.  */
static void come_back(void)
{
	int status;

	do
		status = controller_move(AFFINODE_COMMAND_RESUME);
	while (status == AFFINODE_BUSY);
	CHECK(status == AFFINODE_OK || status == AFFINODE_NOTHING);
}

static bool cycle(const struct move *at, unsigned nth)
{
	bool left;

	if (nth % 2)
		contents_change_now(CONTENTS_ONE_CHUNK);
	contents_make_ready(at);
	left = leave_at(at, nth);
	if (left)
		controller_start_again();
	come_back();
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_RESIDENT);
	contents_are_right();
	return left;
}

/* No call comes: the contents are read all the same. How many calls a move makes is not the same each time: less of a kernel may be
 * left for the park of the rest.  */
static void alone(const struct move *at, unsigned nth)
{
	contents_make_ready(at);
	while (!leave_at(at, nth)) {
		nth /= 2;
		CHECK(nth > 0);
		come_back();
		contents_make_ready(at);
	}
	contents_are_right();
	controller_start_again();
	come_back();
}

int main(int argc, char **argv)
{
	unsigned steps[MOVES];

	contents_begin(argc, argv);
	for (const struct move *at = kinds_of_move; at < kinds_of_move + MOVES; at++) {
		unsigned nth = board_first_step();

		while (cycle(at, nth))
			nth += board_stride();
		steps[at - kinds_of_move] = nth - 1;
		printf("left at calls up to %u of a %s\n", nth - 1, at->name);
		CHECK(nth > 10);
	}
	for (const struct move *at = kinds_of_move; at < kinds_of_move + MOVES; at++)
		alone(at, steps[at - kinds_of_move] / 2);
	return 0;
}
