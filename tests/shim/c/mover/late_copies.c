/* The driver takes copies of a park, and then refuses every call, so that nothing tells when they are done. One is late: that of the
 * second GPU, to memory which the context of the first has registered. It stays until the driver has said that the copy is done.  */
#include "board.h"
#include "contents.h"
#include "harness.h"

#define OF_SECOND_GPU 2 /* the GPUs take turns */

static unsigned in_doubt;

/* False: the park was done before that call.  */
static bool refuses_from(unsigned nth)
{
	struct affinode_reply reply;

	board_arm("cuMemcpyDtoHAsync:LATE:%u,*:UNKNOWN:%u+", OF_SECOND_GPU, nth);
	reply = controller_reply(controller_command(AFFINODE_COMMAND_PARK, 0));
	board_disarm();
	test_at("refuses from call %u on, status %d %s; struck: %s", nth, reply.status, reply.text, board_struck());
	in_doubt += reply.status == AFFINODE_FAILED && strstr(board_struck(), "cuMemcpyDtoHAsync ");
	if (page_read().state == AFFINODE_STATE_PARKED)
		CHECK_RESUMES();
	controller_trim();
	contents_are_right();
	return reply.status != AFFINODE_OK;
}

int main(int argc, char **argv)
{
	setenv("AFFINODE_SIM_GPUS", "2", 1);
	contents_begin(argc, argv);
	for (unsigned nth = board_first_step() % 3 + 1; refuses_from(nth); nth += 2)
		;
	CHECK(in_doubt > 2);
	return 0;
}
