/* Moves part after part, as two processes make them that change places. A park that streams releases memory as it goes, and
 * nothing that happens on its way loses a word: the process is resident, or parked with the rest still on the GPU. A resume
 * that streams waits for room, and gives back what it has when none comes.  */
#include "board.h"
#include "contents.h"
#include "harness.h"
#include "streamed.h"

static CUresult (*set_hidden)(CUdeviceptr, unsigned int, size_t);
static CUresult (*synchronize_hidden)(CUstream);

static void there_and_back(void)
{
	for (unsigned how = 0; how < 2; how++) {
		streamed_change();
		streamed_park();
		CHECK_EQUAL(cuda_free_bytes(), streamed_free_bytes + contents_bytes() + streamed_bytes);
		CHECK(page_read().last_park_copied_bytes >= STREAMED_PLACES * STREAMED_CHUNK);
		CHECK_EQUAL(streamed_resume(how ? AFFINODE_MOVE_STREAM : 0), AFFINODE_OK);
		streamed_is_resident();
	}
	streamed_park(); /* nothing has changed */
	CHECK(page_read().last_park_copied_bytes < STREAMED_CHUNK); /* but for the chunk that is none */
	CHECK_EQUAL(streamed_resume(AFFINODE_MOVE_STREAM), AFFINODE_OK);
	streamed_is_resident();
	streamed_change();
	CHECK_EQUAL(streamed_decide(streamed_prepare(), false).status, AFFINODE_REVOKED);
	streamed_is_resident();
}

/* Once memory is on its way out no call ends it.  */
static void called_on_the_way(void)
{
	struct call call;
	uint32_t epoch;

	streamed_change();
	epoch = streamed_prepare();
	board_arm("cuMemcpyDtoHAsync:HOLD:1");
	controller_decide(epoch, true);
	UNTIL(board_holds());
	call_begin(&call, contents_call);
	PAGE_UNTIL(page.want == 1);
	board_disarm();
	CHECK_EQUAL(controller_reply(epoch).status, AFFINODE_OK);
	CHECK(!atomic_load(&call.returned));
	CHECK_EQUAL(streamed_resume(AFFINODE_MOVE_STREAM), AFFINODE_OK);
	call_end(&call);
	streamed_is_resident();
}

/* Past the gate, and done before the mover goes on: later it would be a fault of the program's.  */
static void write_hidden(CUdeviceptr at, uint32_t value)
{
	CHECK_EQUAL(set_hidden(at, value, STREAMED_CHUNK / 4), CUDA_SUCCESS);
	CHECK_EQUAL(synchronize_hidden(NULL), CUDA_SUCCESS);
}

/* While the first window is being copied.  */
static void written_on_the_way(void)
{
	for (unsigned i = 0; i < STREAMED_PLACES; i++) {
		struct affinode_reply reply;
		uint32_t epoch;

		streamed_change();
		epoch = streamed_prepare();
		board_arm("cuMemcpyDtoHAsync:HOLD:1");
		controller_decide(epoch, true);
		UNTIL(board_holds());
		write_hidden(streamed + streamed_place(i), ++streamed_words[i]);
		board_disarm();
		reply = controller_reply(epoch);
		CHECK(reply.status == AFFINODE_OK || reply.status == AFFINODE_FAILED);
		CHECK_EQUAL(streamed_resume(0), AFFINODE_OK);
		streamed_is_resident();
	}
}

/* So is what was zero, or unchanged since the last park, when the streaming began.  */
static void written_where_nothing_was_to_be_copied(void)
{
	const size_t zero = MiB(20);

	streamed_change();
	streamed_park();
	CHECK_EQUAL(streamed_resume(0), AFFINODE_OK);
	for (unsigned i = 0; i <= STREAMED_PLACES; i++) {
		size_t where = i < STREAMED_PLACES ? streamed_place(i) : zero;
		uint32_t epoch = streamed_prepare(), value = i < STREAMED_PLACES ? ++streamed_words[i] : 77, word;
		struct affinode_reply reply;

		board_arm("*:HOLD:1");
		controller_decide(epoch, true);
		UNTIL(board_holds());
		write_hidden(streamed + where, value);
		board_disarm();
		reply = controller_reply(epoch);
		CHECK(reply.status == AFFINODE_OK || reply.status == AFFINODE_FAILED);
		if (page_read().state == AFFINODE_STATE_PARKED)
			CHECK_EQUAL(streamed_resume(AFFINODE_MOVE_STREAM), AFFINODE_OK);
		CUDA(MemcpyDtoH(&word, streamed + where, 4));
		CHECK_EQUAL(word, value);
		if (where == zero)
			CUDA(MemsetD32(streamed + where, 0, STREAMED_CHUNK / 4));
		streamed_is_resident();
	}
}

static void park_in_part(void)
{
	for (unsigned nth = 2;; nth++) {
		uint32_t epoch;

		CHECK(nth < 100);
		streamed_change();
		epoch = streamed_prepare();
		board_arm("cuLaunchKernel:UNKNOWN:%u", nth);
		streamed_decide(epoch, true);
		board_disarm();
		if (page_read().state != AFFINODE_STATE_PARKED)
			continue;
		PAGE_UNTIL(page.gpus[0].parked_bytes > 0);
		if (page_read().gpus[0].resident_bytes > 0 && page_read().gpus[0].resident_bytes < streamed_bytes)
			return;
		CHECK_EQUAL(streamed_resume(0), AFFINODE_OK);
	}
}

/* What never left is not filled from a copy that is none.  */
static void resume_of_a_part_fails(void)
{
	for (unsigned how = 0; how < 2; how++) {
		park_in_part();
		board_arm("cuMemcpyHtoDAsync:UNKNOWN:1,cuMemUnmap:UNKNOWN:1+");
		CHECK_EQUAL(streamed_resume(how ? AFFINODE_MOVE_STREAM : 0), AFFINODE_FAILED);
		CHECK(board_disarm() > 1);
		CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
		CHECK_EQUAL(streamed_resume(how ? 0 : AFFINODE_MOVE_STREAM), AFFINODE_OK);
		streamed_is_resident();
	}
}

/* What of it is still on the GPU is freed as well as what is not.  */
static void freed_when_partly_parked(void)
{
	park_in_part();
	CUDA(MemFree(streamed));
	CHECK_EQUAL(streamed_resume(0), AFFINODE_OK);
	contents_are_right();
	CHECK_EQUAL(cuda_free_bytes(), streamed_free_bytes + streamed_bytes);
	streamed_allocate(STREAMED_BIG);
	streamed_is_resident();
}

/* The controller is killed: before COMMIT nothing has happened, and afterwards it is carried out.  */
static void without_controller(void)
{
	uint32_t epoch;

	streamed_change();
	streamed_prepare();
	controller_stop();
	streamed_is_right(); /* calls are let through */
	controller_start_again();
	PAGE_UNTIL(page.state == AFFINODE_STATE_RESIDENT);
	streamed_is_resident();

	epoch = streamed_prepare();
	board_arm("cuMemcpyDtoHAsync:HOLD:1");
	controller_decide(epoch, true);
	UNTIL(board_holds());
	controller_stop();
	board_disarm();
	controller_start_again();
	PAGE_UNTIL(page.state == AFFINODE_STATE_PARKED);
	board_arm("cuMemcpyHtoDAsync:HOLD:1");
	do { /* the park's outcome may not have been taken yet */
		epoch = controller_command(AFFINODE_COMMAND_RESUME, AFFINODE_MOVE_STREAM);
	} while (!board_holds_in(epoch));
	controller_stop();
	board_disarm();
	controller_start_again();
	PAGE_UNTIL(page.state == AFFINODE_STATE_RESIDENT);
	streamed_is_resident();
}

static void room_comes_late(void)
{
	CUdeviceptr rest, pieces[4];
	uint32_t epoch;

	streamed_park();
	rest = cuda_take(4 * MiB(80));
	for (unsigned i = 0; i < 4; i++)
		pieces[i] = cuda_take(i < 3 ? (3 - i) * MiB(80) : MiB(2));
	epoch = controller_command(AFFINODE_COMMAND_RESUME, AFFINODE_MOVE_STREAM);
	for (unsigned i = 0; i < 4; i++) {
		size_t before = cuda_free_bytes();

		PAGE_UNTIL(page.state == AFFINODE_STATE_RESUMING);
		CHECK(!controller_replied(epoch));
		cuda_give(pieces[i]);
		UNTIL(cuda_free_bytes() < before + MiB(64)); /* it has taken some of that */
	}
	CHECK_EQUAL(controller_reply(epoch).status, AFFINODE_OK);
	cuda_give(rest);
	streamed_is_resident();
}

static void no_room_comes(bool aborted)
{
	CUdeviceptr rest;
	uint64_t since;
	uint32_t epoch;
	size_t before;

	streamed_park();
	rest = cuda_take(MiB(100));
	before = cuda_free_bytes();
	since = test_now_ns();
	epoch = controller_command(AFFINODE_COMMAND_RESUME, AFFINODE_MOVE_STREAM);
	UNTIL(cuda_free_bytes() < MiB(50)); /* it has begun */
	if (aborted)
		controller_decide(epoch, false);
	CHECK_EQUAL(controller_reply(epoch).status, aborted ? AFFINODE_REVOKED : AFFINODE_NO_GPU_ROOM);
	CHECK(aborted || test_now_ns() - since >= AFFINODE_STREAM_MS * 1000000ull);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	CHECK_EQUAL(cuda_free_bytes(), before);
	cuda_give(rest);
	CHECK_EQUAL(streamed_resume(AFFINODE_MOVE_STREAM), AFFINODE_OK);
	streamed_is_resident();
}

int main(int argc, char **argv)
{
	contents_begin(argc, argv);
	*(void **)&set_hidden = cuda_hidden("cuMemsetD32_v2");
	*(void **)&synchronize_hidden = cuda_hidden("cuStreamSynchronize");
	streamed_allocate(STREAMED_BIG);
	streamed_free_bytes = cuda_free_bytes();
	there_and_back();
	called_on_the_way();
	written_on_the_way();
	written_where_nothing_was_to_be_copied();
	resume_of_a_part_fails();
	freed_when_partly_parked();
	without_controller();
	room_comes_late();
	no_room_comes(true);
	no_room_comes(false);
	return 0;
}
