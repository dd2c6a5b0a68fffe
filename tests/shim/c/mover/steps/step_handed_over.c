/* The driver fails at any one call of a move that hands over, or at all from then on: what has arrived stays on the GPU, the host has
 * the rest, and no word is lost. So with the park of what is left on the GPU, and where the host has some or all of it on disk.  */
#include "board.h"
#include "contents.h"
#include "harness.h"
#include "spilling.h"
#include "streamed.h"

/* More than a window of these moves.  */
#define BYTES MiB(160)

static unsigned partly, parted, partly_on_disk;

/* Each byte is on the GPU or in the host; where the driver took back what it was given, the GPU has no more of it.  */
static void is_parked(size_t free_when_parked, bool gave_back)
{
	struct affinode_page page = page_read();

	CHECK_EQUAL(page.state, AFFINODE_STATE_PARKED);
	CHECK_EQUAL(page.gpus[0].resident_bytes + page.gpus[0].parked_bytes, streamed_bytes + contents_bytes());
	if (gave_back)
		CHECK_EQUAL(cuda_free_bytes(), free_when_parked - page.gpus[0].resident_bytes);
	partly += page.gpus[0].resident_bytes > 0;
	partly_on_disk += page.gpus[0].resident_bytes > 0 && page.disk_bytes > 0;
}

/* Whole, in turn in memory, in part on disk, and on disk.  */
static void park_anywhere(unsigned nth)
{
	static const uint64_t most[] = {0, 3 * STREAMED_CHUNK, ALL};

	streamed_change();
	streamed_park();
	if (nth % 3)
		CHECK_EQUAL(controller_reply(controller_spill(most[nth % 3], spill_folder)).status, AFFINODE_OK);
}

/* False: it makes no such call.  */
static bool resume_fails_at(const char *plus, unsigned nth)
{
	size_t free_when_parked;
	unsigned met;
	int status;

	park_anywhere(nth);
	free_when_parked = cuda_free_bytes();
	board_arm("*:UNKNOWN:%u%s", nth, plus);
	status = streamed_resume(HANDS_OVER);
	met = board_disarm();
	test_at("resume, failing at call %u%s: %s", nth, plus, board_struck());
	if (status == AFFINODE_OK) {
		streamed_is_resident();
		return met > 0;
	}
	CHECK(met > 0);
	is_parked(free_when_parked, !*plus && !strstr(board_struck(), "cuMemUnmap") && !strstr(board_struck(), "cuMemRelease"));
	if (nth % 2) {
		status = controller_reply(controller_command(AFFINODE_COMMAND_PARK, AFFINODE_MOVE_STREAM)).status;
		CHECK(status == AFFINODE_OK || status == AFFINODE_NOTHING);
		CHECK_EQUAL(page_read().gpus[0].resident_bytes, 0);
	}
	streamed_come_back(nth);
	return true;
}

static bool park_fails_at(const char *plus, unsigned nth)
{
	struct affinode_reply reply;
	uint32_t epoch;
	unsigned met;

	streamed_change();
	epoch = controller_prepare(AFFINODE_COMMAND_PARK, HANDS_OVER);
	board_arm("*:UNKNOWN:%u%s", nth, plus);
	reply = streamed_decide(epoch, true);
	met = board_disarm();
	test_at("park, failing at call %u%s: %s, status %d %s, then in state %u", nth, plus,
		board_struck(), reply.status, reply.text, page_read().state);
	CHECK(reply.status == AFFINODE_OK || (met && reply.text[0]));
	if (page_read().state == AFFINODE_STATE_PARKED)
		streamed_come_back(nth);
	streamed_is_resident();
	return met > 0;
}

/* Of a process in which only the first window had room.  */
static bool rest_fails_at(const char *plus, unsigned nth)
{
	struct affinode_page page;
	CUdeviceptr taken;
	uint32_t epoch;
	unsigned met;
	int status;

	park_anywhere(nth);
	taken = cuda_take(MiB(110));
	epoch = controller_command(AFFINODE_COMMAND_RESUME, HANDS_OVER);
	PAGE_UNTIL(page.gpus[0].resident_bytes >= MiB(64));
	controller_decide(epoch, false);
	status = controller_reply(epoch).status;
	CHECK(status == AFFINODE_REVOKED || status == AFFINODE_NO_GPU_ROOM); /* its two seconds had passed */
	is_parked(0, false);
	board_arm("*:UNKNOWN:%u%s", nth, plus);
	status = controller_reply(controller_command(AFFINODE_COMMAND_PARK, AFFINODE_MOVE_STREAM | nth % 2 * AFFINODE_MOVE_HAND_OVER)).status;
	met = board_disarm();
	page = page_read();
	test_at("the rest, failing at call %u%s: %s, status %d", nth, plus, board_struck(), status);
	CHECK(status == AFFINODE_OK || met);
	CHECK_EQUAL(page.state, AFFINODE_STATE_PARKED);
	CHECK((status == AFFINODE_OK) == (page.gpus[0].resident_bytes == 0) || strstr(board_struck(), "cuMemUnmap"));
	parted += page.gpus[0].resident_bytes > 0;
	cuda_give(taken);
	streamed_come_back(nth);
	return met > 0;
}

int main(int argc, char **argv)
{
	contents_begin(argc, argv);
	spilling_begin();
	streamed_allocate(BYTES);
	streamed_free_bytes = cuda_free_bytes();
	board_at_every_call(resume_fails_at, "resume");
	printf("parked in part %u times, %u with some of it on disk\n", partly, partly_on_disk);
	board_at_every_call(park_fails_at, "park");
	board_at_every_call(rest_fails_at, "the park of the rest");
	printf("the rest was in part on the GPU %u times\n", parted);
	return 0;
}
