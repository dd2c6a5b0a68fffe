/* Moves part after part, as two processes make them that change places. A park that streams releases memory as it goes, and no
 * failure on its way loses a word: the process is resident, or parked with the rest still on the GPU. A resume that
 * streams waits for room, and gives back what it has when none comes.  */
#include "board.h"
#include "contents.h"
#include "harness.h"

/* More than a window (streaming_out.c), of zeros but for three chunks: the first, one amidst, the last.  */
#define BIG MiB(288)
/* More than a part.  */
#define SMALLER MiB(96)
#define CHUNK MiB(2)

enum { PLACES = 3 };

static CUdeviceptr big;
static size_t big_bytes;
static uint32_t expected[PLACES];
static size_t free_when_resident, free_when_parked;
static unsigned partly;
static _Atomic bool called;
static CUresult (*set_hidden)(CUdeviceptr, unsigned int, size_t);
static CUresult (*allocate_hidden)(CUdeviceptr *, size_t);
static CUresult (*free_hidden)(CUdeviceptr);

static size_t place(unsigned i)
{
	return i * (big_bytes - CHUNK) / (PLACES - 1) / CHUNK * CHUNK;
}

static void change_big(void)
{
	for (unsigned i = 0; i < PLACES; i++)
		CUDA(MemsetD32(big + place(i), ++expected[i], CHUNK / 4));
}

static void is_right(void)
{
	uint32_t words[2];

	for (unsigned i = 0; i < PLACES; i++) {
		CUDA(MemcpyDtoH(&words[0], big + place(i), 4));
		CUDA(MemcpyDtoH(&words[1], big + place(i) + CHUNK - 4, 4));
		CHECK_EQUAL(words[0], expected[i]);
		CHECK_EQUAL(words[1], expected[i]);
	}
	CUDA(MemcpyDtoH(&words[0], big + MiB(20), 4));
	CHECK_EQUAL(words[0], 0);
	contents_are_right();
}

static void is_resident(void)
{
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_RESIDENT);
	is_right();
	if (strstr(board_struck(), "cuMemRelease ")) /* what the driver would not release it still has */
		free_when_resident = cuda_free_bytes();
	CHECK_EQUAL(cuda_free_bytes(), free_when_resident);
}

static void change(void)
{
	change_big();
	CHECK_EQUAL(contents_change(CONTENTS_BROKEN), CUDA_SUCCESS);
	CUDA(CtxSynchronize());
}

static void allocate_big(size_t bytes)
{
	big_bytes = bytes;
	CUDA(MemAlloc(&big, bytes));
	CUDA(MemsetD32(big, 0, bytes / 4));
	change();
}

static uint32_t prepare(void)
{
	uint32_t epoch;

	do
		epoch = controller_command(AFFINODE_COMMAND_PARK, AFFINODE_MOVE_PREPARE | AFFINODE_MOVE_STREAM);
	while (!controller_prepared(epoch) && controller_reply(epoch).status == AFFINODE_BUSY);
	CHECK(controller_prepared(epoch));
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKING);
	CHECK_EQUAL(cuda_free_bytes(), free_when_resident);
	return epoch;
}

static struct affinode_reply decide(uint32_t epoch, bool commit)
{
	controller_decide(epoch, commit);
	return controller_reply(epoch);
}

static void park(void)
{
	struct affinode_reply reply = decide(prepare(), true);

	snprintf(test_step, sizeof(test_step), "park: %s", reply.text);
	CHECK_EQUAL(reply.status, AFFINODE_OK);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	CHECK_EQUAL(page_read().gpus[0].resident_bytes, 0);
}

static int resume(uint64_t how)
{
	return controller_reply(controller_command(AFFINODE_COMMAND_RESUME, how)).status;
}

static void there_and_back(void)
{
	for (unsigned how = 0; how < 2; how++) {
		change();
		park();
		free_when_parked = cuda_free_bytes();
		CHECK_EQUAL(free_when_parked, free_when_resident + contents_bytes() + big_bytes);
		CHECK(page_read().last_park_copied_bytes >= PLACES * CHUNK);
		CHECK_EQUAL(resume(how ? AFFINODE_MOVE_STREAM : 0), AFFINODE_OK);
		is_resident();
	}
	park(); /* nothing has changed */
	CHECK(page_read().last_park_copied_bytes < CHUNK); /* but for the chunk that is none */
	CHECK_EQUAL(resume(AFFINODE_MOVE_STREAM), AFFINODE_OK);
	is_resident();
	change();
	CHECK_EQUAL(decide(prepare(), false).status, AFFINODE_REVOKED);
	is_resident();
}

static void *call(void *unused)
{
	(void)unused;
	CUDA(CtxSetCurrent(cuda_context));
	CHECK_EQUAL(contents_change(CONTENTS_ONE_CHUNK), CUDA_SUCCESS);
	atomic_store(&called, true);
	return NULL;
}

/* Once memory is on its way out no call ends it.  */
static void called_on_the_way(void)
{
	pthread_t thread;
	uint32_t epoch;

	change();
	epoch = prepare();
	board_arm("cuMemcpyDtoHAsync:HOLD:1");
	controller_decide(epoch, true);
	UNTIL(board_holds());
	atomic_store(&called, false);
	thread_start(&thread, call, NULL);
	PAGE_UNTIL(page.want == 1);
	board_disarm();
	CHECK_EQUAL(controller_reply(epoch).status, AFFINODE_OK);
	CHECK(!atomic_load(&called));
	CHECK_EQUAL(resume(AFFINODE_MOVE_STREAM), AFFINODE_OK);
	thread_join(thread);
	is_resident();
}

/* Past the gate, while the first window is being copied.  */
static void written_on_the_way(void)
{
	for (unsigned i = 0; i < PLACES; i++) {
		struct affinode_reply reply;
		uint32_t epoch;

		change();
		epoch = prepare();
		board_arm("cuMemcpyDtoHAsync:HOLD:1");
		controller_decide(epoch, true);
		UNTIL(board_holds());
		CHECK_EQUAL(set_hidden(big + place(i), ++expected[i], CHUNK / 4), CUDA_SUCCESS);
		board_disarm();
		reply = controller_reply(epoch);
		CHECK(reply.status == AFFINODE_OK || reply.status == AFFINODE_FAILED);
		CHECK_EQUAL(resume(0), AFFINODE_OK);
		is_resident();
	}
}

/* The driver fails after COMMIT; false: it makes no such call.  */
static bool park_fails_at(const char *plus, unsigned nth)
{
	struct affinode_reply reply;
	struct affinode_page page;
	uint32_t epoch;
	unsigned met;

	change();
	epoch = prepare();
	board_arm("*:UNKNOWN:%u%s", nth, plus);
	reply = decide(epoch, true);
	met = board_disarm();
	page = page_read();
	snprintf(test_step, sizeof(test_step), "park, failing at call %u%s: %s, status %d %s, then in state %u", nth, plus,
		 board_struck(), reply.status, reply.text, page.state);
	CHECK(reply.status == AFFINODE_OK || (met && reply.text[0]));
	if (reply.status == AFFINODE_OK)
		CHECK_EQUAL(page.state, AFFINODE_STATE_PARKED);
	if (page.state == AFFINODE_STATE_PARKED) {
		partly += page.gpus[0].resident_bytes > 0;
		CHECK_EQUAL(resume(nth % 2 ? AFFINODE_MOVE_STREAM : 0), AFFINODE_OK);
	}
	is_resident();
	return met > 0;
}

static bool resume_fails_at(const char *plus, unsigned nth)
{
	struct affinode_reply reply;
	unsigned met;
	int status;

	if (nth % 2)
		change();
	park();
	free_when_parked = cuda_free_bytes();
	board_arm("*:UNKNOWN:%u%s", nth, plus);
	status = resume(AFFINODE_MOVE_STREAM);
	met = board_disarm();
	snprintf(test_step, sizeof(test_step), "resume, failing at call %u%s: %s", nth, plus, board_struck());
	if (status != AFFINODE_OK) {
		CHECK(met > 0);
		CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
		reply = controller_reply(controller_command(AFFINODE_COMMAND_RESUME, nth % 3 ? AFFINODE_MOVE_STREAM : 0));
		snprintf(test_step, sizeof(test_step), "resume %u%s after %s: %s", nth, plus, board_struck(), reply.text);
		CHECK_EQUAL(reply.status, AFFINODE_OK);
	}
	is_resident();
	return met > 0;
}

static void park_in_part(void)
{
	for (unsigned nth = 2;; nth++) {
		uint32_t epoch;

		CHECK(nth < 100);
		change();
		epoch = prepare();
		board_arm("cuLaunchKernel:UNKNOWN:%u", nth);
		decide(epoch, true);
		board_disarm();
		if (page_read().state != AFFINODE_STATE_PARKED)
			continue;
		PAGE_UNTIL(page.gpus[0].parked_bytes > 0);
		if (page_read().gpus[0].resident_bytes > 0 && page_read().gpus[0].resident_bytes < big_bytes)
			return;
		CHECK_EQUAL(resume(0), AFFINODE_OK);
	}
}

/* What never left is not filled from a copy that is none.  */
static void resume_of_a_part_fails(void)
{
	for (unsigned how = 0; how < 2; how++) {
		park_in_part();
		board_arm("cuMemcpyHtoDAsync:UNKNOWN:1,cuMemUnmap:UNKNOWN:1+");
		CHECK_EQUAL(resume(how ? AFFINODE_MOVE_STREAM : 0), AFFINODE_FAILED);
		CHECK(board_disarm() > 1);
		CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
		CHECK_EQUAL(resume(how ? 0 : AFFINODE_MOVE_STREAM), AFFINODE_OK);
		is_resident();
	}
}

/* What of it is still on the GPU is freed as well as what is not.  */
static void freed_when_partly_parked(void)
{
	park_in_part();
	CUDA(MemFree(big));
	CHECK_EQUAL(resume(0), AFFINODE_OK);
	contents_are_right();
	CHECK_EQUAL(cuda_free_bytes(), free_when_resident + big_bytes);
	allocate_big(BIG);
	is_resident();
}

/* The controller is killed: before COMMIT nothing has happened, and afterwards it is carried out.  */
static void without_controller(void)
{
	uint32_t epoch;

	change();
	prepare();
	controller_stop();
	is_right(); /* calls are let through */
	controller_listen_again();
	controller_accept();
	PAGE_UNTIL(page.state == AFFINODE_STATE_RESIDENT);
	is_resident();

	epoch = prepare();
	board_arm("cuMemcpyDtoHAsync:HOLD:1");
	controller_decide(epoch, true);
	UNTIL(board_holds());
	controller_stop();
	board_disarm();
	controller_listen_again();
	controller_accept();
	PAGE_UNTIL(page.state == AFFINODE_STATE_PARKED);
	board_arm("cuMemcpyHtoDAsync:HOLD:1");
	do { /* the park's outcome may not have been taken yet */
		epoch = controller_command(AFFINODE_COMMAND_RESUME, AFFINODE_MOVE_STREAM);
		UNTIL(board_holds() || (controller_pump() && controller_replied(epoch)));
	} while (!board_holds());
	controller_stop();
	board_disarm();
	controller_listen_again();
	controller_accept();
	PAGE_UNTIL(page.state == AFFINODE_STATE_RESIDENT);
	is_resident();
}

/* Fill the GPU past the shim, but for `spare` bytes.  */
static CUdeviceptr take(size_t spare)
{
	size_t bytes = (cuda_free_bytes() - spare) / CHUNK * CHUNK;
	CUdeviceptr taken;

	CHECK_EQUAL(allocate_hidden(&taken, bytes), CUDA_SUCCESS);
	return taken;
}

static void room_comes_late(void)
{
	CUdeviceptr rest, pieces[4];
	uint32_t epoch;

	park();
	rest = take(4 * MiB(80));
	for (unsigned i = 0; i < 4; i++)
		CHECK_EQUAL(allocate_hidden(&pieces[i], i < 3 ? MiB(80) : MiB(78)), CUDA_SUCCESS);
	epoch = controller_command(AFFINODE_COMMAND_RESUME, AFFINODE_MOVE_STREAM);
	for (unsigned i = 0; i < 4; i++) {
		size_t before = cuda_free_bytes();

		PAGE_UNTIL(page.state == AFFINODE_STATE_RESUMING);
		CHECK(!controller_replied(epoch));
		CHECK_EQUAL(free_hidden(pieces[i]), CUDA_SUCCESS);
		UNTIL(cuda_free_bytes() < before + MiB(64)); /* it has taken some of that */
	}
	CHECK_EQUAL(controller_reply(epoch).status, AFFINODE_OK);
	CHECK_EQUAL(free_hidden(rest), CUDA_SUCCESS);
	is_resident();
}

static void no_room_comes(bool aborted)
{
	CUdeviceptr rest;
	uint64_t since;
	uint32_t epoch;
	size_t before;

	park();
	rest = take(MiB(100));
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
	CHECK_EQUAL(free_hidden(rest), CUDA_SUCCESS);
	CHECK_EQUAL(resume(AFFINODE_MOVE_STREAM), AFFINODE_OK);
	is_resident();
}

static void at_every_call(bool (*fails_at)(const char *, unsigned), const char *name)
{
	for (int plus = 0; plus < 2; plus++) {
		unsigned nth = board_first_step();

		while (fails_at(plus ? "+" : "", nth))
			nth += board_stride();
		printf("%s failed at calls up to %u\n", name, nth - 1);
		CHECK(nth > 10);
	}
	test_step[0] = 0;
}

int main(int argc, char **argv)
{
	test_begin(argc, argv, 140);
	board_make();
	cuda_start();
	*(void **)&set_hidden = cuda_hidden("cuMemsetD32_v2");
	*(void **)&allocate_hidden = cuda_hidden("cuMemAlloc_v2");
	*(void **)&free_hidden = cuda_hidden("cuMemFree_v2");
	controller_accept();
	CHECK(controller_hello().flags & AFFINODE_HELLO_EXCHANGES);
	contents_make();
	allocate_big(BIG);
	free_when_resident = cuda_free_bytes();
	there_and_back();
	called_on_the_way();
	written_on_the_way();
	resume_of_a_part_fails();
	freed_when_partly_parked();
	without_controller();
	room_comes_late();
	no_room_comes(true);
	no_room_comes(false);
	at_every_call(park_fails_at, "park");
	printf("parked in part %u times\n", partly);
	CUDA(MemFree(big));
	allocate_big(SMALLER);
	free_when_resident = cuda_free_bytes();
	at_every_call(resume_fails_at, "resume");
	return 0;
}
