/* Whatever a controller sends, the process goes on: malformed messages end the link and nothing else, late and repeated
 * commands do nothing, and an answer goes to the controller that asked.  */
#include "harness.h"

#include <poll.h>
#include <sys/socket.h>

static CUdeviceptr block;

static void resident_and_right(void)
{
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_RESIDENT);
	CHECK(holds_pattern(block, MiB(2), 91, 0));
}

/* The shim drops the link and comes back with a new hello.  */
static void dropped_for(const void *bytes, size_t size)
{
	CHECK_EQUAL(send(controller_fd(), bytes, size, MSG_NOSIGNAL), size);
	while (controller_pump()) {
		struct pollfd fd = {.fd = controller_fd(), .events = POLLIN};

		poll(&fd, 1, 100);
	}
	controller_accept();
	resident_and_right();
}

static struct affinode_command park(uint32_t epoch)
{
	return (struct affinode_command){
		.header = {AFFINODE_LINK_MAGIC, AFFINODE_PROTOCOL_VERSION, AFFINODE_COMMAND,
			   sizeof(struct affinode_command), epoch},
		.command = AFFINODE_COMMAND_PARK};
}

static void malformed(void)
{
	struct affinode_command good = park(1), bad = good;
	char large[4096];

	bad.header.magic ^= 1;
	dropped_for(&bad, sizeof(bad));
	bad = good;
	bad.header.size--;
	dropped_for(&bad, sizeof(bad));
	bad = good;
	dropped_for(&bad, sizeof(bad) - 8); /* truncated */
	bad.header.size = sizeof(bad) - 8;
	dropped_for(&bad, sizeof(bad) - 8); /* truncated, and says so */
	bad = good;
	bad.header.version++; /* a controller of another version */
	dropped_for(&bad, sizeof(bad));
	bad = good;
	bad.header.type = 0x99;
	dropped_for(&bad, sizeof(bad));
	dropped_for(&good.header, 8);
	memset(large, 0, sizeof(large));
	memcpy(large, &good, sizeof(good));
	dropped_for(large, sizeof(large)); /* oversized */
	((struct affinode_header *)(void *)large)->size = sizeof(large);
	dropped_for(large, sizeof(large));
}

static void ignored(void)
{
	struct affinode_command command = park(1000);
	uint32_t n = 0;

	do
		controller_send(AFFINODE_COMMAND, &command, sizeof(command), ++n);
	while (controller_reply(n).status == AFFINODE_BUSY); /* this machine is too slow for the mover's patience */
	CHECK_EQUAL(controller_reply(n).status, AFFINODE_OK);
	command.command = AFFINODE_COMMAND_RESUME;
	controller_send(AFFINODE_COMMAND, &command, sizeof(command), n); /* a number that was there */
	controller_send(AFFINODE_COMMAND, &command, sizeof(command), 0);
	command.command = 77;
	controller_send(AFFINODE_COMMAND, &command, sizeof(command), n + 1);
	command.command = AFFINODE_COMMAND_RESUME;
	command.deadline_ns = test_now_ns() - 1;
	controller_send(AFFINODE_COMMAND, &command, sizeof(command), n + 2);
	CHECK_EQUAL(controller_reply(n + 2).status, AFFINODE_STALE);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	CHECK_EQUAL(page_read().resumes, 0);
	command.deadline_ns = test_now_ns() + 60000000000u;
	controller_send(AFFINODE_COMMAND, &command, sizeof(command), n + 3);
	CHECK_EQUAL(controller_reply(n + 3).status, AFFINODE_OK);
	resident_and_right();
	controller_send(AFFINODE_COMMAND, &command, sizeof(command), n + 4);
	CHECK_EQUAL(controller_reply(n + 4).status, AFFINODE_NOTHING);
}

/* A move outlives the controller that ordered it; the next one, whose numbers begin anew, gets no answer to it.  */
static void answers_only_who_asked(void)
{
	uint32_t epoch;

	controller_drop(); /* numbers begin anew */
	controller_accept();
	do {
		/* A loaded machine may see the move too late, or give it up.  */
		for (;; controller_move(AFFINODE_COMMAND_RESUME)) {
			epoch = controller_command(AFFINODE_COMMAND_PARK, 0);
			UNTIL((controller_pump(), page_read().state == AFFINODE_STATE_PARKING || controller_replied(epoch)));
			if (!controller_replied(epoch))
				break;
		}
		controller_drop();
		controller_accept();
		PAGE_UNTIL(page.state != AFFINODE_STATE_PARKING);
	} while (page_read().state == AFFINODE_STATE_RESIDENT); /* given up when it was seen: once more */
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	while (controller_command(AFFINODE_COMMAND_CANCEL_END, 0) < epoch) /* which are not answered */
		;
	struct affinode_reply reply;
	do { /* busy: the page is ahead of the mover's last steps */
		reply = controller_reply(controller_command(AFFINODE_COMMAND_RESUME, 0));
		CHECK_EQUAL(reply.command, AFFINODE_COMMAND_RESUME);
	} while (reply.status == AFFINODE_BUSY);
	CHECK_EQUAL(reply.status, AFFINODE_OK);
	CHECK(!controller_replied(epoch));
	resident_and_right();
}

int main(int argc, char **argv)
{
	setenv("AFFINODE_SIM_COPY_RATE", "20MiB", 1); /* 0.1 s for the block */
	cuda_begin(argc, argv, 40);
	block = cuda_block(MiB(2), 91);
	malformed();
	ignored();
	answers_only_who_asked();
	return 0;
}
