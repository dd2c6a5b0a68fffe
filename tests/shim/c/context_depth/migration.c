/* A process that was parked at context depth comes back on another GPU of the machine, one that it cannot even see, and back
 * again. Whatever driver call fails on the way, it is on one GPU, the one that the page names, with its contents; and a resume
 * without more words brings it back there.  */
#include "board.h"
#include "contents.h"
#include "depth.h"

#define GPUS 3
#define OWN 1 /* the one that it sees */

static char uuids[GPUS][48];
static unsigned long long used[GPUS];
static CUresult (*device_uuid)(void *, CUdevice);
static CUresult (*device_pci_id)(char *, int, CUdevice);
static unsigned arrived, stayed, shallow;

static void look(void)
{
	FILE *said = ask_nvml("all");
	char line[256];

	for (int i = 0; i < GPUS; i++) {
		CHECK(fgets(line, sizeof(line), said) != NULL);
		CHECK_EQUAL(sscanf(line, "%*s %*s %llu %*s %*s %*s %*s %47s", &used[i], uuids[i]), 2);
	}
	CHECK(fgets(line, sizeof(line), said) == NULL);
	CHECK_EQUAL(pclose(said), 0);
}

static struct affinode_reply resume_on(int gpu)
{
	return controller_reply(controller_resume_on(uuids[gpu], 0));
}

static int where(void)
{
	const char *now = gpu_uuid();

	for (int i = 0; i < GPUS; i++)
		if (strcmp(now, uuids[i]) == 0)
			return i;
	return -1;
}

/* On this GPU, as every process sees it.  */
static void is_on(int gpu)
{
	uint8_t uuid[16];

	CHECK_EQUAL(where(), gpu);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_RESIDENT);
	CHECK_EQUAL(page_read().depth, AFFINODE_DEPTH_NONE);
	CHECK_EQUAL(page_read().gpu_count, 1);
	look();
	for (int i = 0; i < GPUS; i++)
		CHECK((used[i] != 0) == (i == gpu));
	CHECK_EQUAL(device_uuid(uuid, 0), CUDA_SUCCESS);
	CHECK(strcmp(uuid_text(uuid), uuids[gpu]) == 0);
	contents_are_right();
}

static void there_and_back(void)
{
	park_deep_surely();
	look();
	for (int i = 0; i < GPUS; i++)
		CHECK_EQUAL(used[i], 0);
	CHECK_EQUAL(resume_on(2).status, AFFINODE_OK);
	is_on(2);
	CHECK_EQUAL(contents_change(CONTENTS_BROKEN), CUDA_SUCCESS);
	controller_park(); /* at memory depth it is parked and resumed where it is */
	CHECK_EQUAL(resume_on(0).status, AFFINODE_REFUSED);
	CHECK_EQUAL(resume_on(2).status, AFFINODE_OK);
	is_on(2);
	CHECK_EQUAL(resume_on(0).status, AFFINODE_NOTHING); /* not parked */
	park_deep_surely();
	CHECK_RESUMES();
	is_on(2);
	park_deep_surely();
	CHECK_EQUAL(resume_on(2).status, AFFINODE_OK); /* where it is: a plain resume */
	is_on(2);
	park_deep_surely();
	CHECK_EQUAL(resume_on(0).status, AFFINODE_OK);
	is_on(0);
	park_deep_surely();
	CHECK_EQUAL(resume_on(OWN).status, AFFINODE_OK);
	is_on(OWN);
}

static void *ask_what_it_is(void *pci_id)
{
	uint8_t uuid[16];
	char name[64];
	size_t free_bytes, total;

	CUDA(CtxSetCurrent(cuda_context));
	CHECK_EQUAL(device_uuid(uuid, 0), CUDA_SUCCESS);
	for (int i = 0; i < 16; i++)
		CHECK_EQUAL(uuid[i], page_read().gpus[0].uuid[i]);
	CHECK_EQUAL(device_pci_id(name, sizeof(name), 0), CUDA_SUCCESS);
	CHECK(strcmp(name, pci_id) == 0);
	CUDA(MemGetInfo(&free_bytes, &total));
	CHECK_EQUAL(free_bytes, total);
	return NULL;
}

/* While it is off the GPU again, questions are answered about the one that it left last.  */
static void is_described_anew(void)
{
	char pci_id[64];
	pthread_t thread;

	park_deep_surely();
	CHECK_EQUAL(resume_on(0).status, AFFINODE_OK);
	CHECK_EQUAL(device_pci_id(pci_id, sizeof(pci_id), 0), CUDA_SUCCESS);
	park_deep_surely();
	thread_start(&thread, ask_what_it_is, pci_id);
	thread_join(thread);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	CHECK_EQUAL(resume_on(OWN).status, AFFINODE_OK);
	is_on(OWN);
}

/* The lock of the GPU that it goes to is waited for, and held while the driver brings it back there; no other is.  */
static void locks_where_it_goes(void)
{
	uint32_t epoch;
	int taken = gpu_lock_take(uuids[2]);

	park_deep_surely();
	epoch = controller_resume_on(uuids[2], 0);
	PAGE_UNTIL(page.state == AFFINODE_STATE_RESUMING);
	CHECK(!controller_replied(epoch));
	board_arm("cuCheckpointProcessRestore:HOLD:1");
	gpu_lock_leave(taken);
	UNTIL(board_holds());
	CHECK(gpu_lock_is_taken(uuids[2]) && !gpu_lock_is_taken(uuids[OWN]));
	board_disarm();
	CHECK_EQUAL(controller_reply(epoch).status, AFFINODE_OK);
	is_on(2);
	CHECK(!gpu_lock_is_taken(uuids[2]));
	park_deep_surely();
	CHECK_EQUAL(resume_on(OWN).status, AFFINODE_OK);
}

static void is_refused(struct affinode_reply reply, int status, const char *words)
{
	test_at("refused: %s", words);
	CHECK_EQUAL(reply.status, status);
	CHECK(strstr(reply.text, words) != NULL);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	CHECK_EQUAL(page_read().depth, AFFINODE_DEPTH_CONTEXT);
	CHECK_EQUAL(where(), OWN);
}

/* What cannot be done leaves everything as it was.  */
static void stays_where_it_was(void)
{
	const char *absent = "GPU-00000000-0000-0000-0000-000000000000";

	park_deep_surely();
	is_refused(controller_reply(controller_resume_on("gpu 2", 0)), AFFINODE_REFUSED, "no GPU's UUID");
	is_refused(controller_reply(controller_resume_on(uuids[2], AFFINODE_MOVE_PREPARE)), AFFINODE_REFUSED, "move together");
	is_refused(controller_reply(controller_resume_on(absent, 0)), AFFINODE_REFUSED, "no lock");
	board_arm("cuCheckpointProcessRestore:INVALID_VALUE:1");
	is_refused(resume_on(2), AFFINODE_REFUSED, "on that GPU (error 1");
	CHECK_EQUAL(board_disarm(), 1);
	board_arm("cuCheckpointProcessGetState:TAKE=1TiB:1");
	is_refused(resume_on(2), AFFINODE_NO_GPU_ROOM, "the GPU is full");
	CHECK_EQUAL(board_disarm(), 1);
	board_arm("*:TAKE=0:1");
	CHECK_RESUMES();
	board_disarm();
	is_on(OWN);
}

/* The driver has restored it there and does not let it go: there it is, and nowhere else.  */
static void is_where_it_was_restored(void)
{
	park_deep_surely();
	board_arm("cuCheckpointProcessUnlock:UNKNOWN:1");
	CHECK_EQUAL(resume_on(2).status, AFFINODE_FAILED);
	CHECK_EQUAL(board_disarm(), 1);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	CHECK_EQUAL(where(), 2);
	CHECK_EQUAL(resume_on(0).status, AFFINODE_REFUSED);
	CHECK_RESUMES();
	is_on(2);
}

static void come_back(void)
{
	if (page_read().state == AFFINODE_STATE_RESIDENT)
		return;
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	CHECK_RESUMES();
}

/* Any call fails on the way; whether that was met.  */
static bool fails_at(unsigned nth, const char *plus)
{
	int before = where(), to = (before + 1) % GPUS;
	struct affinode_reply reply;
	unsigned met;

	contents_change_now(nth % 2 ? CONTENTS_BROKEN : CONTENTS_MAPPED);
	park_deep_surely();
	board_arm("*:UNKNOWN:%u%s", nth, plus);
	reply = resume_on(to);
	met = board_disarm();
	test_at("from call %u%s, status %d (%s), depth %u, on %d; struck: %s", nth, plus,
		reply.status, reply.text, page_read().depth, where(), board_struck());
	CHECK(reply.status == AFFINODE_OK || (met && reply.text[0]));
	CHECK(where() == to || (where() == before && reply.status != AFFINODE_OK));
	CHECK(reply.status != AFFINODE_REFUSED || where() == before);
	arrived += where() == to;
	stayed += where() == before;
	shallow += page_read().depth == AFFINODE_DEPTH_MEMORY;
	to = where();
	come_back();
	is_on(to);
	return met > 0;
}

/* A foreign program takes all memory at any call but Restore itself, which it would end: the room is there, or it stays, or it
 * has arrived and its memory waits.  */
static bool is_full_at(unsigned nth, unsigned restoring)
{
	int before = where(), to = (before + 1) % GPUS;
	struct affinode_reply reply;
	unsigned met;

	if (nth == restoring)
		return true;
	park_deep_surely();
	board_arm("*:TAKE=1TiB:%u", nth);
	reply = resume_on(to);
	met = board_disarm();
	test_at("full at call %u (%s), status %d, on %d", nth, board_struck(), reply.status, where());
	CHECK(reply.status == AFFINODE_OK || reply.status == AFFINODE_NO_GPU_ROOM);
	CHECK((where() == to) == (nth > restoring));
	to = where();
	board_arm("*:TAKE=0:1");
	come_back();
	contents_are_right(); /* its calls too: the stranger is gone */
	board_disarm();
	is_on(to);
	return met > 0;
}

static uint32_t go_to_the_other(void)
{
	return controller_resume_on(uuids[where() ? 0 : 2], 0);
}

/* What comes after Restore is a resume like any other, gone through call by call in step_depth.c: one call in a few here.  */
static void every_step(void)
{
	unsigned nth, restoring, stride = board_stride() + 3;
	uint64_t random = test_seed;
	const char *plus = test_seed & 16 ? "+" : ""; /* once, or from then on */

	nth = 1 + (unsigned)(test_random(&random) % stride);
	while (fails_at(nth, plus))
		nth += stride;
	printf("failing%s at calls up to %u\n", plus, nth - 1);
	CHECK(nth > 2 * stride);
	restoring = restoring_call(go_to_the_other);
	nth = 1;
	while (is_full_at(nth, restoring))
		nth += nth > restoring ? stride : 1;
	printf("the GPU full at calls up to %u but %u; %u arrived, %u stayed, %u at memory depth\n", nth - 1, restoring,
	       arrived, stayed, shallow);
	CHECK(arrived > 0);
}

/* A driver that says that it did: it is asked where the process is, and not to do it again.  */
static void is_where_the_driver_says(void)
{
	int before = where();

	park_deep_surely();
	board_arm("cuCheckpointProcessRestore:STAY:1");
	CHECK_EQUAL(resume_on((before + 1) % GPUS).status, AFFINODE_OK);
	CHECK_EQUAL(board_disarm(), 1);
	is_on(before);
	park_deep_surely();
	CHECK_EQUAL(resume_on((before + 1) % GPUS).status, AFFINODE_REFUSED);
	CHECK_RESUMES();
	is_on(before);
}

int main(int argc, char **argv)
{
	char own[8];

	test_begin(argc, argv, 140);
	depth_ask();
	snprintf(own, sizeof(own), "%d", OWN);
	setenv("AFFINODE_SIM_GPUS", "3", 1);
	setenv("CUDA_VISIBLE_DEVICES", own, 1);
	board_make();
	cuda_start();
	*(void **)&device_uuid = cuda_symbol("cuDeviceGetUuid_v2");
	*(void **)&device_pci_id = cuda_symbol("cuDeviceGetPCIBusId");
	controller_accept();
	contents_make();
	look();
	there_and_back();
	is_described_anew();
	locks_where_it_goes();
	stays_where_it_was();
	is_where_it_was_restored();
	every_step();
	is_where_the_driver_says();
	return 0;
}
