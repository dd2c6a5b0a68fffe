/* Moves in two steps. A prepared park has given nothing up and a prepared resume has all the room that it needs; COMMIT
 * carries a move out, ABORT undoes it at whatever call it is, and where neither is said the process keeps, or gets,
 * what it had. With a failing driver too.  */
#include "board.h"
#include "contents.h"
#include "harness.h"

static size_t free_when_resident, free_when_parked;

static const char *name_of(uint32_t at)
{
	return at == AFFINODE_COMMAND_PARK ? "park" : "resume";
}

/* Prepared, and whole on whichever side it is.  */
static uint32_t prepare(uint32_t at)
{
	uint32_t epoch = controller_prepare(at, 0);

	CHECK(controller_prepared(epoch));
	CHECK_EQUAL(page_read().state, at == AFFINODE_COMMAND_PARK ? AFFINODE_STATE_PARKING : AFFINODE_STATE_RESUMING);
	CHECK_EQUAL(cuda_free_bytes(), free_when_resident);
	return epoch;
}

static int decide(uint32_t epoch, bool commit)
{
	controller_decide(epoch, commit);
	return controller_reply(epoch).status;
}

static void is_resident(void)
{
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_RESIDENT);
	contents_are_right();
	CHECK_EQUAL(cuda_free_bytes(), free_when_resident);
}

static void is_parked(void)
{
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	CHECK_EQUAL(cuda_free_bytes(), free_when_parked);
}

static void committed(void)
{
	uint32_t epoch = prepare(AFFINODE_COMMAND_PARK);

	controller_decide(epoch + 7, true); /* another move's */
	controller_decide(epoch + 7, false);
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_BUSY);
	CHECK_EQUAL(decide(epoch, true), AFFINODE_OK);
	controller_decide(epoch, false); /* too late */
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	free_when_parked = cuda_free_bytes();
	CHECK_EQUAL(free_when_parked, free_when_resident + contents_bytes());
	epoch = prepare(AFFINODE_COMMAND_RESUME);
	CHECK_EQUAL(decide(epoch, false), AFFINODE_REVOKED);
	is_parked();
	CHECK_EQUAL(decide(prepare(AFFINODE_COMMAND_RESUME), true), AFFINODE_OK);
	is_resident();
	CHECK_EQUAL(decide(prepare(AFFINODE_COMMAND_PARK), false), AFFINODE_REVOKED);
	is_resident();
}

/* The controller is told, and where it says nothing the call goes through all the same.  */
static void called_while_prepared(bool controller_aborts)
{
	uint32_t epoch = prepare(AFFINODE_COMMAND_PARK);
	uint64_t since = test_now_ns();
	struct call call;

	call_begin(&call, contents_call);
	controller_noticed(AFFINODE_NOTIFY_WANT, NULL);
	CHECK(!atomic_load(&call.returned) || test_now_ns() - since >= AFFINODE_PREPARED_CALL_MS * 1000000ull);
	if (controller_aborts)
		controller_decide(epoch, false);
	CHECK_EQUAL(controller_reply(epoch).status, AFFINODE_REVOKED);
	CHECK(controller_aborts || test_now_ns() - since >= AFFINODE_PREPARED_CALL_MS * 1000000ull);
	call_end(&call);
	is_resident();
}

/* Committed all the same: the call waits for the resume.  */
static void called_and_committed(void)
{
	uint32_t epoch = prepare(AFFINODE_COMMAND_PARK);
	struct call call;
	int status;

	call_begin(&call, contents_call);
	controller_noticed(AFFINODE_NOTIFY_WANT, NULL);
	status = decide(epoch, true);
	if (status == AFFINODE_OK) {
		PAGE_UNTIL(page.state == AFFINODE_STATE_QUEUED);
		CHECK(!atomic_load(&call.returned));
		CHECK_EQUAL(decide(prepare(AFFINODE_COMMAND_RESUME), true), AFFINODE_OK);
	} else {
		CHECK_EQUAL(status, AFFINODE_REVOKED); /* its time had passed */
	}
	call_end(&call);
	is_resident();
}

/* A call that waits goes on waiting.  */
static void called_and_not_resumed(void)
{
	struct call call;

	controller_park();
	call_begin(&call, contents_call);
	PAGE_UNTIL(page.state == AFFINODE_STATE_QUEUED);
	CHECK_EQUAL(decide(prepare(AFFINODE_COMMAND_RESUME), false), AFFINODE_REVOKED);
	PAGE_UNTIL(page.state == AFFINODE_STATE_QUEUED);
	CHECK_EQUAL(decide(prepare(AFFINODE_COMMAND_RESUME), true), AFFINODE_OK);
	call_end(&call);
	is_resident();
}

/* A free does not wait for the decision.  */
static void freed_while_prepared(void)
{
	uint32_t epoch = prepare(AFFINODE_COMMAND_PARK);
	int status;

	contents_free(CONTENTS_ONE_CHUNK);
	status = decide(epoch, true);
	CHECK(status == AFFINODE_OK || status == AFFINODE_REVOKED);
	if (status == AFFINODE_OK)
		CHECK_RESUMES();
	contents_allocate(CONTENTS_ONE_CHUNK);
	UNTIL(cuda_free_bytes() == free_when_resident);
	is_resident();
}

/* A resume is carried out in the end.  */
static void never_decided(void)
{
	uint64_t since;

	controller_park();
	since = test_now_ns();
	CHECK_EQUAL(controller_reply(prepare(AFFINODE_COMMAND_RESUME)).status, AFFINODE_OK);
	CHECK(test_now_ns() - since >= AFFINODE_PREPARED_MS * 1000000ull);
	is_resident();
}

static void link_lost(void)
{
	uint32_t epoch;

	prepare(AFFINODE_COMMAND_PARK);
	controller_drop();
	contents_are_right(); /* no call waits */
	controller_accept();
	PAGE_UNTIL(page.state == AFFINODE_STATE_RESIDENT);
	is_resident();

	epoch = prepare(AFFINODE_COMMAND_PARK);
	controller_decide(epoch, true);
	/* What is sent behind it is answered behind it: with a message unread here, the link's end could overtake COMMIT.  */
	controller_move(AFFINODE_COMMAND_PARK);
	controller_drop();
	controller_accept();
	PAGE_UNTIL(page.state == AFFINODE_STATE_PARKED);
	prepare(AFFINODE_COMMAND_RESUME);
	controller_drop();
	contents_are_right();
	controller_accept();
	PAGE_UNTIL(page.state == AFFINODE_STATE_RESIDENT);
	is_resident();
}

/* ABORT comes while the move is at that call; false: it has no such call.  */
static bool aborted_at(uint32_t at, unsigned nth)
{
	struct affinode_reply reply;
	uint32_t epoch;
	bool held;

	test_at("%s, aborted at call %u", name_of(at), nth);
	CUDA(CtxSynchronize());
	if (at == AFFINODE_COMMAND_RESUME)
		controller_park();
	board_arm("*:HOLD:%u", nth);
	epoch = controller_command(at, AFFINODE_MOVE_PREPARE);
	held = board_holds_in(epoch);
	if (!held && controller_replied(epoch)) {
		board_disarm();
		CHECK_EQUAL(controller_reply(epoch).status, AFFINODE_BUSY);
		return aborted_at(at, nth); /* this machine was too slow for the mover's patience */
	}
	controller_decide(epoch, false);
	if (held) /* what is sent behind it is answered behind it: it has been read while the call is held */
		CHECK_EQUAL(controller_move(AFFINODE_COMMAND_PARK), AFFINODE_BUSY);
	board_disarm();
	reply = controller_reply(epoch);
	if (held && at == AFFINODE_COMMAND_PARK && reply.status == AFFINODE_BUSY)
		return aborted_at(at, nth); /* it was held for longer than the mover's patience */
	CHECK_EQUAL(reply.status, AFFINODE_REVOKED);
	CHECK(reply.text[0] != 0);
	if (at == AFFINODE_COMMAND_RESUME) {
		is_parked();
		CHECK_RESUMES();
	}
	is_resident();
	return held;
}

/* The driver fails after COMMIT; false: it makes no such call.  */
static bool fails_at(uint32_t at, const char *plus, unsigned nth)
{
	struct affinode_reply reply;
	unsigned met;
	uint32_t epoch;

	test_at("%s, committed, then failing at call %u", name_of(at), nth);
	contents_change_now(CONTENTS_BROKEN);
	if (at == AFFINODE_COMMAND_RESUME)
		controller_park();
	epoch = prepare(at);
	board_arm("*:UNKNOWN:%u%s", nth, plus);
	controller_decide(epoch, true);
	reply = controller_reply(epoch);
	met = board_disarm();
	CHECK(reply.status == AFFINODE_OK || (met && reply.text[0]));
	if (page_read().state != AFFINODE_STATE_RESIDENT)
		CHECK_RESUMES();
	if (strstr(board_struck(), "cuMemRelease ")) /* what the driver would not release it still has */
		free_when_resident = cuda_free_bytes();
	is_resident();
	return met > 0;
}

int main(int argc, char **argv)
{
	contents_begin(argc, argv);
	contents_are_right();
	free_when_resident = cuda_free_bytes();
	committed();
	called_while_prepared(true);
	called_while_prepared(false);
	called_and_committed();
	called_and_not_resumed();
	freed_while_prepared();
	never_decided();
	link_lost();
	for (uint32_t at = AFFINODE_COMMAND_PARK; at <= AFFINODE_COMMAND_RESUME; at++)
		AT_EVERY_CALL(aborted_at(at, nth), "%s aborted", name_of(at));
	for (uint32_t at = AFFINODE_COMMAND_PARK; at <= AFFINODE_COMMAND_RESUME; at++) {
		AT_EVERY_CALL(fails_at(at, "", nth), "committed %s failed", name_of(at));
		AT_EVERY_CALL(fails_at(at, "+", nth), "committed %s failed", name_of(at));
	}
	/* And where the program is about to end.  */
	test_step[0] = 0;
	prepare(AFFINODE_COMMAND_PARK);
	controller_command(AFFINODE_COMMAND_DYING, 0);
	PAGE_UNTIL(page.state == AFFINODE_STATE_RESIDENT);
	contents_are_right();
	return 0;
}
