/* A fault at every step of the way to disk and back: any one driver call fails, the process is killed, the controller is killed.
 * Memory is in the host's, on disk or on the GPU, whole, and nothing is left on the disk of a process that has ended.  */
#include <signal.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include "board.h"
#include "contents.h"
#include "spilling.h"

static const char *const steps[] = {"spill", "resume", "read back"};
enum { SPILL, RESUME, READ_BACK, STEPS };

static uint32_t begin(int at)
{
	if (at == SPILL)
		return controller_spill(ALL, spill_folder);
	return controller_command(at == RESUME ? AFFINODE_COMMAND_RESUME : AFFINODE_COMMAND_READ_BACK, at == RESUME ? 0 : ALL);
}

/* Parked, on disk if it is to be read. Every other time with a part in memory.  */
static void make_ready(int at, unsigned nth)
{
	controller_reply(controller_spill(0, spill_folder)); /* everything is written anew */
	controller_park();
	if (at != SPILL)
		controller_reply(controller_spill(nth % 2 ? ALL : MiB(6), spill_folder));
}

static void come_back(void)
{
	int status;

	do
		status = controller_move(AFFINODE_COMMAND_RESUME);
	while (status == AFFINODE_BUSY); /* a move that an earlier controller began */
	CHECK(status == AFFINODE_OK || status == AFFINODE_NOTHING);
	contents_are_right();
}

static bool with_error(int at, unsigned nth, const char *what)
{
	struct affinode_reply reply;
	unsigned met;

	test_at("%s, %s at call %u", steps[at], what, nth);
	make_ready(at, nth);
	board_arm("*:%s:%u", what, nth);
	reply = controller_reply(begin(at));
	met = board_disarm();
	if (reply.status != AFFINODE_OK) {
		CHECK(met > 0);
		CHECK(reply.text[0] != 0);
		CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	}
	come_back();
	return met > 0;
}

/* The controller goes while the process is held at that call.  */
static bool without_controller(int at, unsigned nth)
{
	uint32_t epoch;
	bool held;

	test_at("%s, controller killed at call %u", steps[at], nth);
	make_ready(at, nth);
	board_arm("*:HOLD:%u", nth);
	epoch = begin(at);
	held = board_holds_in(epoch);
	if (held)
		controller_stop();
	board_disarm();
	if (held)
		controller_start_again();
	come_back();
	return held;
}

/* Until the link closes, or the reply is there: whether it closed.  */
static bool died(uint32_t epoch)
{
	while (controller_pump()) {
		if (controller_replied(epoch))
			return false;
		test_pause();
	}
	return true;
}

static bool killed(int at, unsigned nth)
{
	pid_t pid = contents_child_start();
	bool was_killed;

	test_at("%s, killed at call %u", steps[at], nth);
	make_ready(at, nth);
	board_arm("*:KILL:%u", nth);
	was_killed = died(begin(at));
	if (!was_killed)
		kill(pid, SIGKILL);
	CHECK_EQUAL(child_wait(pid), 128 + SIGKILL);
	board_disarm();
	CHECK_EQUAL(spill_names(), 0);
	return was_killed;
}

/* At a moment that no driver call marks, with files of its own.  */
static void killed_while_it_moves(int at)
{
	pid_t pid = contents_child_start();
	uint64_t random = test_seed, pause_ns = test_random(&random) % 30000000, begun;

	make_ready(at, 1);
	begin(at);
	for (begun = test_now_ns(); test_now_ns() - begun < pause_ns;)
		;
	kill(pid, SIGKILL);
	CHECK_EQUAL(child_wait(pid), 128 + SIGKILL);
	CHECK_EQUAL(spill_names(), 0);
}

int main(int argc, char **argv)
{
	static const char *const errors[] = {"OUT_OF_MEMORY", "UNKNOWN", "OPERATING_SYSTEM"};
	unsigned kills = 0;

	test_begin(argc, argv, 140);
	if (test_role)
		contents_child();
	spilling_begin();
	board_make();
	for (int at = SPILL; at < STEPS; at++)
		for (unsigned nth = board_first_step(); killed(at, nth); nth += 2 * board_stride())
			kills++;
	CHECK(kills > 0);
	killed_while_it_moves(SPILL);
	killed_while_it_moves(READ_BACK);
	cuda_start();
	controller_accept();
	contents_make();
	for (int at = SPILL; at < STEPS; at++) {
		for (unsigned i = 0; i < sizeof(errors) / sizeof(*errors); i++) {
			unsigned nth = board_first_step();

			while (with_error(at, nth, errors[i]))
				nth += board_stride();
			printf("%s, %s: %u steps\n", steps[at], errors[i], nth - 1);
			CHECK(at != RESUME || nth > 10);
		}
		for (unsigned nth = board_first_step(); without_controller(at, nth); nth += board_stride())
			;
	}
	return 0;
}
