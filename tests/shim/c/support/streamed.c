#include "streamed.h"

#include "board.h"
#include "contents.h"
#include "harness.h"

CUdeviceptr streamed;
size_t streamed_bytes, streamed_free_bytes;
uint32_t streamed_words[STREAMED_PLACES];

size_t streamed_place(unsigned i)
{
	return i * (streamed_bytes - STREAMED_CHUNK) / (STREAMED_PLACES - 1) / STREAMED_CHUNK * STREAMED_CHUNK;
}

void streamed_is_right(void)
{
	uint32_t words[2];

	for (unsigned i = 0; i < STREAMED_PLACES; i++) {
		CUDA(MemcpyDtoH(&words[0], streamed + streamed_place(i), 4));
		CUDA(MemcpyDtoH(&words[1], streamed + streamed_place(i) + STREAMED_CHUNK - 4, 4));
		CHECK_EQUAL(words[0], streamed_words[i]);
		CHECK_EQUAL(words[1], streamed_words[i]);
	}
	CUDA(MemcpyDtoH(&words[0], streamed + MiB(20), 4));
	CHECK_EQUAL(words[0], 0);
	contents_are_right();
}

void streamed_is_resident(void)
{
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_RESIDENT);
	streamed_is_right();
	if (strstr(board_struck(), "cuMemRelease ")) /* what the driver would not release it still has */
		streamed_free_bytes = cuda_free_bytes();
	CHECK_EQUAL(cuda_free_bytes(), streamed_free_bytes);
}

void streamed_change(void)
{
	for (unsigned i = 0; i < STREAMED_PLACES; i++)
		CUDA(MemsetD32(streamed + streamed_place(i), ++streamed_words[i], STREAMED_CHUNK / 4));
	contents_change_now(CONTENTS_BROKEN);
}

void streamed_allocate(size_t bytes)
{
	streamed_bytes = bytes;
	CUDA(MemAlloc(&streamed, bytes));
	CUDA(MemsetD32(streamed, 0, bytes / 4));
	streamed_change();
}

uint32_t streamed_prepare(void)
{
	uint32_t epoch = controller_prepare(AFFINODE_COMMAND_PARK, AFFINODE_MOVE_STREAM);

	CHECK(controller_prepared(epoch));
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKING);
	CHECK_EQUAL(cuda_free_bytes(), streamed_free_bytes);
	return epoch;
}

struct affinode_reply streamed_decide(uint32_t epoch, bool commit)
{
	controller_decide(epoch, commit);
	return controller_reply(epoch);
}

void streamed_park(void)
{
	struct affinode_reply reply = streamed_decide(streamed_prepare(), true);

	test_at("park: %s", reply.text);
	CHECK_EQUAL(reply.status, AFFINODE_OK);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	CHECK_EQUAL(page_read().gpus[0].resident_bytes, 0);
}

int streamed_resume(uint64_t how)
{
	struct affinode_reply reply = controller_reply(controller_command(AFFINODE_COMMAND_RESUME, how));

	test_at("resume: %s", reply.text);
	return reply.status;
}

void streamed_come_back(unsigned nth)
{
	static const uint64_t ways[] = {0, AFFINODE_MOVE_STREAM, HANDS_OVER};

	CHECK_EQUAL(streamed_resume(ways[nth % 3]), AFFINODE_OK);
	streamed_is_resident();
}
