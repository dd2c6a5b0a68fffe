/* At context depth too: any one driver call of a park or of a resume fails, once or from then on, and the process is
 * resident or parked, at whatever depth, with its contents; never lost.  */
#include "board.h"
#include "contents.h"
#include "depth.h"
#include "harness.h"

#include <sys/resource.h>

static const char *const pluses[] = {"", "+"};
static unsigned deep, shallow, refused;

static void come_back(void)
{
	PAGE_UNTIL(page.state != AFFINODE_STATE_PARKING); /* a park that was answered for being late goes on to its end */
	if (page_read().state == AFFINODE_STATE_RESIDENT)
		return;
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	CHECK_RESUMES();
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_RESIDENT);
}

/* Whether the fault was met.  */
static bool cycle(uint32_t at, const char *plus, unsigned nth)
{
	struct affinode_reply reply;
	unsigned met;

	contents_change_now(nth % 2 ? CONTENTS_BROKEN : CONTENTS_MAPPED);
	if (at == AFFINODE_COMMAND_RESUME)
		park_deep_surely();
	do {
		board_arm("*:UNKNOWN:%u%s", nth, plus);
		reply = at == AFFINODE_COMMAND_PARK ? park_deep() : controller_reply(controller_command(at, 0));
		met = board_disarm();
	} while (reply.status == AFFINODE_BUSY && !met); /* this machine is too slow for the mover's patience */
	test_at("%s, from call %u%s, status %d, depth %u; struck: %s",
		at == AFFINODE_COMMAND_PARK ? "park" : "resume", nth, plus, reply.status, page_read().depth,
		board_struck());
	CHECK(reply.status == AFFINODE_OK || (met && reply.text[0]));
	deep += page_read().depth == AFFINODE_DEPTH_CONTEXT;
	shallow += page_read().depth == AFFINODE_DEPTH_MEMORY;
	refused += reply.status != AFFINODE_OK;
	come_back();
	contents_are_right();
	return met > 0;
}

static uint32_t resume_here(void)
{
	return controller_command(AFFINODE_COMMAND_RESUME, 0);
}

/* A foreign process fills the GPU at that call of a resume. False: there is no such call.  */
static bool foreign_takes_room(unsigned nth)
{
	struct affinode_reply reply;
	unsigned met;

	park_deep_surely();
	board_arm("*:TAKE=1TiB:%u", nth);
	reply = controller_reply(controller_command(AFFINODE_COMMAND_RESUME, 0));
	met = board_disarm();
	test_at("resume, the GPU full at call %u (%s), status %d", nth, board_struck(), reply.status);
	CHECK(reply.status == AFFINODE_OK || reply.status == AFFINODE_NO_GPU_ROOM);
	board_arm("*:TAKE=0:1");
	come_back();
	contents_are_right();
	board_disarm();
	return met > 0;
}

/* With room for no descriptor more NVML cannot be asked about the GPU.  */
static void set_descriptors(rlim_t most)
{
	struct rlimit limit;

	CHECK_EQUAL(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = most < limit.rlim_max ? most : limit.rlim_max;
	CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* Park beside a foreign process that ends meanwhile, or with no answer to the look at what was given up.  */
static void park_beside(bool it_ends)
{
	do {
		uint32_t epoch;

		come_back();
		board_arm(it_ends ? "cuCheckpointProcessCheckpoint:TAKE=0:1" : "cuCheckpointProcessCheckpoint:HOLD:1");
		epoch = controller_command(AFFINODE_COMMAND_PARK, AFFINODE_MOVE_CONTEXT);
		board_holds_in(epoch);
		if (!it_ends)
			set_descriptors(0);
		board_disarm();
		controller_reply(epoch);
		set_descriptors(RLIM_INFINITY);
	} while (page_read().depth != AFFINODE_DEPTH_CONTEXT);
}

/* What others used is not what it needs to come back, whatever they do meanwhile.  */
static void others_are_not_counted(void)
{
	uint64_t alone;

	park_deep_surely();
	alone = page_read().context_bytes;
	CHECK(alone > 0);
	for (int it_ends = 0; it_ends < 2; it_ends++) {
		test_at("a foreign process %s", it_ends ? "ends meanwhile" : "stays");
		come_back();
		board_arm("*:TAKE=1536MiB:1");
		CUDA(CtxSynchronize());
		CHECK_EQUAL(board_disarm(), 1);
		park_beside(it_ends);
		CHECK(page_read().context_bytes >= alone);
		CHECK(page_read().context_bytes <= alone + MiB(1024));
		come_back(); /* whether it is still there or not */
		board_arm("*:TAKE=0:1");
		CUDA(CtxSynchronize());
		board_disarm();
		contents_are_right();
		park_deep_surely();
	}
	come_back();
}

int main(int argc, char **argv)
{
	unsigned nth, restoring;

	depth_ask();
	contents_begin(argc, argv);
	park_deep_surely();
	come_back();
	for (uint32_t at = AFFINODE_COMMAND_PARK; at <= AFFINODE_COMMAND_RESUME; at++)
		for (unsigned i = 0; i < 2; i++)
			AT_EVERY_CALL(cycle(at, pluses[i], nth), "%s, failing%s", at == AFFINODE_COMMAND_PARK ? "park" : "resume",
				      pluses[i]);
	/* At the call that restores the context there is no help: the driver loses the process. Hence the GPU's lock, and
	 * the look at other processes there.  */
	restoring = restoring_call(resume_here);
	for (nth = restoring == 1 ? 2 : 1; foreign_takes_room(nth); nth += nth == restoring)
		nth += 1 + board_stride() / 10;
	printf("the GPU full at calls up to %u but %u\n", nth - 1, restoring);
	others_are_not_counted();
	printf("%u refused; afterwards %u deep, %u at memory depth\n", refused, deep, shallow);
	return 0;
}
