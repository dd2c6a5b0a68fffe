/* A park of many blocks, all changed: the last of them are copied while the others are released. The driver fails at any one of
 * its calls, or memory is written to past the shim: the process is resident, parked, or parked in part, and no word is lost.  */
#include "board.h"
#include "harness.h"

#define BLOCKS 40 /* of a chunk each: with these the park leaves some for then */
#define BYTES MiB(2)

static CUresult (*set_hidden)(CUdeviceptr, unsigned int, size_t), (*wait_hidden)(CUstream);
static CUdeviceptr blocks[BLOCKS];
static uint32_t words[BLOCKS]; /* what each is full of */

static void change_all(void)
{
	for (unsigned i = 0; i < BLOCKS; i++)
		CUDA(MemsetD32(blocks[i], words[i] += BLOCKS, BYTES / 4));
	CUDA(CtxSynchronize());
}

static void contents_are_right(void)
{
	static uint32_t found[BYTES / 4];

	for (unsigned i = 0; i < BLOCKS; i++) {
		CUDA(MemcpyDtoH(found, blocks[i], BYTES));
		for (size_t at = 0; at < BYTES / 4; at++)
			if (found[at] != words[i])
				test_fail(__FILE__, __LINE__, "a word was lost in block", (long)i);
	}
}

/* With that fault armed. *met: how often it struck.  */
static struct affinode_reply park_with(const char *fault, unsigned nth, const char *plus, unsigned *met)
{
	struct affinode_reply reply;

	change_all();
	do {
		board_arm("%s:%u%s", fault, nth, plus);
		reply = controller_reply(controller_command(AFFINODE_COMMAND_PARK, 0));
		*met = board_disarm();
	} while (reply.status == AFFINODE_BUSY && *met == 0); /* this machine is too slow for the mover's patience */
	return reply;
}

static void comes_back(void)
{
	PAGE_UNTIL(page.state != AFFINODE_STATE_PARKING); /* a park that was answered for being late goes on to its end */
	if (page_read().state != AFFINODE_STATE_RESIDENT)
		CHECK_RESUMES();
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_RESIDENT);
	CHECK_EQUAL(page_read().gpus[0].resident_bytes, BLOCKS * BYTES);
	contents_are_right();
}

/* False: the park makes no such call.  */
static bool fails_at(const char *plus, unsigned nth)
{
	struct affinode_reply reply;
	struct affinode_page page;
	unsigned met;

	reply = park_with("*:UNKNOWN", nth, plus, &met);
	page = page_read();
	test_at("failing at call %u%s: %s, status %d %s, then in state %u", nth, plus,
		board_struck(), reply.status, reply.text, page.state);
	CHECK(reply.status == AFFINODE_OK || (met && reply.text[0]));
	if (reply.status == AFFINODE_OK)
		CHECK_EQUAL(page.state, AFFINODE_STATE_PARKED);
	comes_back();
	return met > 0;
}

static void at_every_call(void)
{
	for (int plus = 0; plus < 2; plus++) {
		unsigned nth = board_first_step();

		while (fails_at(plus ? "+" : "", nth))
			nth += 5 * board_stride();
		printf("failed at calls up to %u\n", nth - 1);
		CHECK(nth > BLOCKS);
	}
	test_step[0] = 0;
}

/* When the first block leaves, that which leaves last is written to: it is copied once more. The write is done before the park goes on:
 * the mover does not wait for work that was submitted past the shim.  */
static void a_hidden_write_is_not_lost(void)
{
	unsigned last = 0;
	bool held = false;

	for (unsigned i = 1; i < BLOCKS; i++)
		if (blocks[i] < blocks[last])
			last = i;

	while (!held) {
		uint32_t epoch;

		change_all();
		board_arm("cuMemUnmap:HOLD:1");
		epoch = controller_command(AFFINODE_COMMAND_PARK, 0);
		held = board_holds_in(epoch);
		if (held) {
			words[last]++;
			CHECK_EQUAL(set_hidden(blocks[last], words[last], BYTES / 4), CUDA_SUCCESS);
			CHECK_EQUAL(wait_hidden(NULL), CUDA_SUCCESS);
		}
		board_disarm();
		CHECK(controller_reply(epoch).status == AFFINODE_OK || !held);
		comes_back();
	}
}

int main(int argc, char **argv)
{
	test_begin(argc, argv, 140);
	board_make();
	cuda_start();
	*(void **)&set_hidden = cuda_hidden("cuMemsetD32_v2");
	*(void **)&wait_hidden = cuda_hidden("cuStreamSynchronize");
	controller_accept();
	for (unsigned i = 0; i < BLOCKS; i++) {
		CUDA(MemAlloc(&blocks[i], BYTES));
		words[i] = i;
	}
	a_hidden_write_is_not_lost();
	at_every_call();
	return 0;
}
