/* Copies that go wrong without saying so, at a resume: a chunk that is not as it was is copied again and counted, and
 * where that does not help the gate stays closed and the host's copy is kept. No call ever sees a wrong byte.  */
#include "board.h"
#include "contents.h"
#include "harness.h"

#define LARGE "1MiB" /* contents, not what the mover tells its kernels */

static const char *const calls[] = {"cuMemcpyHtoDAsync", "cuMemsetD8Async", "cuMemsetD32Async"};

/* Wrong once: mended. False: the resume has no such copy.  */
static bool once(const char *what, unsigned nth)
{
	uint64_t mended = page_read().mended_chunks;
	unsigned met;

	test_at("%s %u wrong once", what, nth);
	controller_park();
	board_arm("%s:CORRUPT=" LARGE ":%u", what, nth);
	CHECK_RESUMES();
	met = board_disarm();
	contents_are_right();
	CHECK_EQUAL(page_read().mended_chunks, mended + met);
	return met;
}

/* Wrong again and again, from that copy on: never opened, while a call waits.  */
static void for_good(const char *what, unsigned nth)
{
	struct affinode_reply reply;
	struct call call;

	test_at("%s wrong from %u on", what, nth);
	contents_change_now(CONTENTS_ONE_CHUNK);
	controller_park();
	call_begin(&call, contents_call);
	PAGE_UNTIL(page.want == 1);
	for (int i = 0; i < 2; i++) {
		board_arm("%s:CORRUPT=" LARGE ":%u+", what, nth);
		reply = controller_reply(controller_command(AFFINODE_COMMAND_RESUME, 0));
		CHECK(board_disarm() > 0);
		CHECK_EQUAL(reply.status, AFFINODE_FAILED);
		CHECK(reply.text[0] != 0);
		PAGE_UNTIL(page.state == AFFINODE_STATE_QUEUED && page.want == 1);
	}
	CHECK_RESUMES();
	call_end(&call);
	contents_are_right();
}

/* Wrong on its way out of the GPU: what was there is lost, but no program computes with what is wrong. The last thing here,
 * for there is no way back.  */
static void out_of_the_gpu(void)
{
	struct call call;
	unsigned met;
	int status;

	test_at("a park's copy wrong");
	contents_change_now(CONTENTS_ONE_CHUNK);
	do { /* a park that is given up has copied for nothing: the next one copies anew */
		board_arm("cuMemcpyDtoHAsync:CORRUPT=" LARGE ":1");
		status = controller_move(AFFINODE_COMMAND_PARK);
		met = board_disarm();
	} while (status == AFFINODE_BUSY);
	CHECK_EQUAL(status, AFFINODE_OK);
	CHECK_EQUAL(met, 1);
	call_begin(&call, contents_call);
	PAGE_UNTIL(page.want == 1);
	for (int i = 0; i < 2; i++) {
		CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_FAILED);
		PAGE_UNTIL(page.state == AFFINODE_STATE_QUEUED && page.want == 1);
	}
	fflush(stdout);
	_exit(0); /* with the call still waiting */
}

int main(int argc, char **argv)
{
	unsigned struck = 0;

	contents_begin(argc, argv);
	for (unsigned i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		unsigned nth = 1;

		while (once(calls[i], nth))
			nth++;
		printf("%s: %u in a resume\n", calls[i], nth - 1);
		struck += nth - 1;
		if (nth > 1)
			for_good(calls[i], 1);
		if (nth > 2)
			for_good(calls[i], nth - 1);
	}
	CHECK(struck >= 3); /* the chunks of the contents, and of zeros */
	out_of_the_gpu();
}
