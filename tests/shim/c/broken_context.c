/* Work of a park or of a resume fails while it runs, and its context with it, as after a fault of the GPU. The move ends
 * with a reason; a resident process gets the driver's own error for its next call, a parked one stays parked; and either
 * can end, which leaves nothing on the GPU. Each in a process of its own.  */
#include "board.h"
#include "contents.h"
#include "harness.h"

#include <sys/socket.h>

#define TALK_FD 9
#define LAUNCH_FAILED 719 /* CUDA_ERROR_LAUNCH_FAILED */

/* The child: something on the GPU, then one call when told to; its result, and a regular end.  */
static void be_moved(void)
{
	int result;
	char word;

	cuda_start();
	contents_make();
	CHECK_EQUAL(write(TALK_FD, "r", 1), 1);
	CHECK_EQUAL(read(TALK_FD, &word, 1), 1);
	result = contents_change(CONTENTS_ONE_CHUNK);
	CHECK_EQUAL(write(TALK_FD, &result, sizeof(result)), sizeof(result));
	exit(0);
}

static pid_t start(int *talk)
{
	int ends[2];
	char ready;
	pid_t pid;

	CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	CHECK_EQUAL(dup2(ends[1], TALK_FD), TALK_FD);
	close(ends[1]);
	pid = child_start("moved");
	close(TALK_FD);
	controller_accept();
	CHECK_EQUAL(read(ends[0], &ready, 1), 1);
	*talk = ends[0];
	return pid;
}

static bool settled(uint32_t state)
{
	return state == AFFINODE_STATE_RESIDENT || state == AFFINODE_STATE_PARKED;
}

/* Whether the move submits so much work.  */
static bool broken_at(uint32_t at, unsigned nth)
{
	struct affinode_reply reply;
	int talk, result;
	unsigned met;
	pid_t pid = start(&talk);

	snprintf(test_step, sizeof(test_step), "%s, work %u", at == AFFINODE_COMMAND_PARK ? "park" : "resume", nth);
	if (at == AFFINODE_COMMAND_RESUME)
		controller_park();
	do {
		board_arm("*:FAIL:%u", nth);
		reply = controller_reply(controller_command(at, 0));
		met = board_disarm();
	} while (!met && reply.status == AFFINODE_BUSY); /* this machine was too slow for the mover's patience */
	if (met) {
		CHECK(reply.status != AFFINODE_OK && reply.text[0] != 0);
		CHECK(settled(page_read().state));
		CHECK_EQUAL(page_read().state == AFFINODE_STATE_PARKED, at == AFFINODE_COMMAND_RESUME);
	} else {
		CHECK_EQUAL(reply.status, AFFINODE_OK);
	}
	CHECK_EQUAL(write(talk, "c", 1), 1);
	if (page_read().state != AFFINODE_STATE_RESIDENT) {
		PAGE_UNTIL(page.want == 1);
		controller_command(AFFINODE_COMMAND_DYING, 0);
	}
	CHECK_EQUAL(read(talk, &result, sizeof(result)), sizeof(result));
	CHECK_EQUAL(result, at == AFFINODE_COMMAND_PARK ? met ? LAUNCH_FAILED : CUDA_ERROR_DEINITIALIZED
			    : met			? CUDA_ERROR_DEINITIALIZED
							: CUDA_SUCCESS);
	CHECK_EQUAL(child_wait(pid), 0);
	close(talk);
	return met > 0;
}

int main(int argc, char **argv)
{
	test_begin(argc, argv, 100);
	if (test_role)
		be_moved();
	board_make();
	for (uint32_t at = AFFINODE_COMMAND_PARK; at <= AFFINODE_COMMAND_RESUME; at++) {
		unsigned nth = 1;

		while (broken_at(at, nth))
			nth++;
		printf("%u pieces of work in a %s\n", nth - 1, at == AFFINODE_COMMAND_PARK ? "park" : "resume");
		CHECK(nth > 3);
	}
	return 0;
}
