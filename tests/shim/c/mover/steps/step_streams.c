/* The driver fails at any one call of a move that streams, or at all from then on: the process is resident, or parked with what
 * has not left still on the GPU, and no word is lost.  */
#include "board.h"
#include "contents.h"
#include "harness.h"
#include "streamed.h"

static unsigned partly;

/* The driver fails before COMMIT: it is prepared all the same, or nothing has happened; false: it makes no such call.  */
static bool prepare_fails_at(const char *plus, unsigned nth)
{
	bool prepared;
	uint32_t epoch;
	unsigned met;
	int status;

	streamed_change();
	board_arm("*:UNKNOWN:%u%s", nth, plus);
	epoch = controller_command(AFFINODE_COMMAND_PARK, AFFINODE_MOVE_PREPARE | AFFINODE_MOVE_STREAM);
	prepared = controller_prepared(epoch);
	met = board_disarm();
	test_at("prepare, failing at call %u%s: %s", nth, plus, board_struck());
	if (prepared) {
		CHECK_EQUAL(streamed_decide(epoch, nth % 2).status, nth % 2 ? AFFINODE_OK : AFFINODE_REVOKED);
		if (nth % 2)
			CHECK_EQUAL(streamed_resume(AFFINODE_MOVE_STREAM), AFFINODE_OK);
	} else {
		status = controller_reply(epoch).status;
		if (!met && status == AFFINODE_BUSY)
			return prepare_fails_at(plus, nth); /* this machine was too slow for the mover's patience */
		CHECK(met > 0);
		CHECK(status != AFFINODE_OK && status != AFFINODE_NO_HOST_ROOM);
	}
	streamed_is_resident();
	return met > 0;
}

/* The driver fails after COMMIT; false: it makes no such call.  */
static bool park_fails_at(const char *plus, unsigned nth)
{
	struct affinode_reply reply;
	struct affinode_page page;
	uint32_t epoch;
	unsigned met;

	streamed_change();
	epoch = streamed_prepare();
	board_arm("*:UNKNOWN:%u%s", nth, plus);
	reply = streamed_decide(epoch, true);
	met = board_disarm();
	page = page_read();
	test_at("park, failing at call %u%s: %s, status %d %s, then in state %u", nth, plus,
		board_struck(), reply.status, reply.text, page.state);
	CHECK(reply.status == AFFINODE_OK || (met && reply.text[0]));
	if (reply.status == AFFINODE_OK)
		CHECK_EQUAL(page.state, AFFINODE_STATE_PARKED);
	if (page.state == AFFINODE_STATE_PARKED) {
		partly += page.gpus[0].resident_bytes > 0;
		CHECK_EQUAL(streamed_resume(nth % 2 ? AFFINODE_MOVE_STREAM : 0), AFFINODE_OK);
	}
	streamed_is_resident();
	return met > 0;
}

static bool resume_fails_at(const char *plus, unsigned nth)
{
	struct affinode_reply reply;
	size_t free_when_parked;
	unsigned met;
	int status;

	if (nth % 2)
		streamed_change();
	streamed_park();
	free_when_parked = cuda_free_bytes();
	board_arm("*:UNKNOWN:%u%s", nth, plus);
	status = streamed_resume(AFFINODE_MOVE_STREAM);
	met = board_disarm();
	test_at("resume, failing at call %u%s: %s", nth, plus, board_struck());
	if (status != AFFINODE_OK) {
		CHECK(met > 0);
		CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
		if (!*plus) /* else the driver takes nothing back */
			CHECK_EQUAL(cuda_free_bytes(), free_when_parked);
		reply = controller_reply(controller_command(AFFINODE_COMMAND_RESUME, nth % 3 ? AFFINODE_MOVE_STREAM : 0));
		test_at("resume %u%s after %s: %s", nth, plus, board_struck(), reply.text);
		CHECK_EQUAL(reply.status, AFFINODE_OK);
	}
	streamed_is_resident();
	return met > 0;
}

int main(int argc, char **argv)
{
	contents_begin(argc, argv);
	streamed_allocate(STREAMED_BIG);
	streamed_free_bytes = cuda_free_bytes();
	board_at_every_call(prepare_fails_at, "prepare");
	board_at_every_call(park_fails_at, "park");
	printf("parked in part %u times\n", partly);
	CUDA(MemFree(streamed));
	streamed_allocate(STREAMED_SMALLER);
	streamed_free_bytes = cuda_free_bytes();
	board_at_every_call(resume_fails_at, "resume");
	return 0;
}
