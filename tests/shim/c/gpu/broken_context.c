/* Work fails while it runs, and its context with it, as after a fault of the GPU: the program's own, or a park's or a
 * resume's. The move ends with that error as its reason, and so does every later one; the program gets the driver's own error
 * for its next call, resident or parked, and waits for nothing. Each in a process of its own, which can end.  */
#include "board.h"
#include "contents.h"
#include "harness.h"

#include <sys/socket.h>

#define LAUNCH_FAILED 719 /* CUDA_ERROR_LAUNCH_FAILED */

/* The child: something on the GPU, then what it is told to; the results, and a regular end.  */
static void be_moved(void)
{
	int result;
	char word;

	cuda_start();
	contents_make();
	CHECK_EQUAL(write(TALK_FD, "r", 1), 1);
	while (read(TALK_FD, &word, 1) == 1) {
		result = word == 'c' ? contents_change(CONTENTS_ONE_CHUNK) : cu.CtxSynchronize();
		CHECK_EQUAL(write(TALK_FD, &result, sizeof(result)), sizeof(result));
	}
	exit(0);
}

static int answer(int talk)
{
	int result;

	CHECK_EQUAL(read(talk, &result, sizeof(result)), sizeof(result));
	return result;
}

static int ask(int talk, char word)
{
	CHECK_EQUAL(write(talk, &word, 1), 1);
	return answer(talk);
}

static void end(pid_t pid, int talk)
{
	CHECK_EQUAL(shutdown(talk, SHUT_WR), 0);
	CHECK_EQUAL(child_wait(pid), 0);
	close(talk);
}

static void fails_with_its_error(uint32_t move)
{
	struct affinode_reply reply = controller_reply(controller_command(move, 0));

	CHECK_EQUAL(reply.status, AFFINODE_FAILED);
	CHECK(strstr(reply.text, "719 (CUDA_ERROR_LAUNCH_FAILED)") != NULL);
	CHECK(page_read().flags & AFFINODE_PAGE_UNPARKABLE);
}

static pid_t start(int *talk)
{
	char ready;
	pid_t pid = child_start_talking("moved", talk);

	controller_accept();
	CHECK_EQUAL(read(*talk, &ready, 1), 1);
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
	unsigned met;
	int talk;
	pid_t pid = start(&talk);

	test_at("%s, work %u", at == AFFINODE_COMMAND_PARK ? "park" : "resume", nth);
	if (at == AFFINODE_COMMAND_RESUME)
		controller_park();
	do {
		board_arm("*:FAIL:%u", nth);
		reply = controller_reply(controller_command(at, 0));
		met = board_disarm();
	} while (!met && reply.status == AFFINODE_BUSY); /* this machine was too slow for the mover's patience */
	if (met) {
		CHECK_EQUAL(reply.status, AFFINODE_FAILED);
		CHECK(strstr(reply.text, "719 (CUDA_ERROR_LAUNCH_FAILED)") != NULL);
		CHECK(settled(page_read().state));
		CHECK_EQUAL(page_read().state == AFFINODE_STATE_PARKED, at == AFFINODE_COMMAND_RESUME);
	} else {
		CHECK_EQUAL(reply.status, AFFINODE_OK);
	}
	if (met) {
		CHECK_EQUAL(ask(talk, 'c'), LAUNCH_FAILED);
		if (at == AFFINODE_COMMAND_RESUME)
			CHECK_EQUAL(ask(talk, 'w'), LAUNCH_FAILED);
		fails_with_its_error(at);
	} else if (at == AFFINODE_COMMAND_RESUME) {
		CHECK_EQUAL(ask(talk, 'c'), CUDA_SUCCESS);
	}
	end(pid, talk);
	return met > 0;
}

/* By its own kernel, before it would be parked.  */
static void broken_by_itself(void)
{
	int talk;
	pid_t pid = start(&talk);

	board_arm("*:FAIL:1");
	ask(talk, 'c');
	CHECK_EQUAL(ask(talk, 'w'), LAUNCH_FAILED);
	CHECK_EQUAL(board_disarm(), 1);
	fails_with_its_error(AFFINODE_COMMAND_PARK);
	fails_with_its_error(AFFINODE_COMMAND_PARK);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_RESIDENT);
	CHECK_EQUAL(ask(talk, 'c'), LAUNCH_FAILED);
	end(pid, talk);
}

int main(int argc, char **argv)
{
	test_begin(argc, argv, 100);
	if (test_role)
		be_moved();
	board_make();
	broken_by_itself();
	for (uint32_t at = AFFINODE_COMMAND_PARK; at <= AFFINODE_COMMAND_RESUME; at++) {
		unsigned nth = 1;

		while (broken_at(at, nth))
			nth++;
		printf("%u pieces of work in a %s\n", nth - 1, at == AFFINODE_COMMAND_PARK ? "park" : "resume");
		CHECK(nth > 3);
	}
	return 0;
}
