/* Host memory that the driver will not register: copies go by a ring of pinned pieces, and straight where that is refused
 * too. Everything comes back, scattered as it lies; a call in the midst of it is not kept waiting; the ring is
 * made once in a context's life, and given up with it.  */
#include "board.h"
#include "contents.h"
#include "harness.h"

#include <dirent.h>
#include <limits.h>

#define REFUSED "cuMemHostRegister:OPERATING_SYSTEM:1+"
#define COUNTED(name) "," name ":TAKE=0:1+" /* no other process took anything: it does no harm */
#define PIECES 24 /* of the ring */
#define PIECE MiB(4)
#define RING (PIECES * PIECE)
#define IN_STRETCH 8 /* pieces of a slab */
#define LARGE_PIECES 32
#define LARGE (LARGE_PIECES * PIECE)
#define SMALL 24

static struct {
	CUdeviceptr at;
	size_t bytes;
	uint32_t seed;
} large, small[SMALL];

static uint64_t state;
static uint32_t seeds = 1000;

static void fill(CUdeviceptr at, size_t bytes, uint32_t *seed)
{
	*seed = ++seeds;
	fill_pattern(at, bytes, *seed);
}

/* More than the ring has pieces; it is there for as long as that matters, for it takes most of a move's time.  */
static void large_make(void)
{
	large.bytes = LARGE;
	CUDA(MemAlloc(&large.at, large.bytes));
}

static void large_free(void)
{
	CUDA(MemFree(large.at));
	large.at = 0;
}

static void change_large(void)
{
	fill(large.at, large.bytes, &large.seed);
}

static void all_is_right(void)
{
	contents_are_right();
	CHECK(!large.at || holds_pattern(large.at, large.bytes, large.seed, 0));
	for (unsigned i = 0; i < SMALL; i++)
		CHECK(!small[i].at || holds_pattern(small[i].at, small[i].bytes, small[i].seed, 0));
}

/* Park what was changed, with those faults; how often one struck.  */
static unsigned changed_park(const char *faults)
{
	if (large.at)
		change_large();
	CHECK_EQUAL(contents_change(CONTENTS_BROKEN), CUDA_SUCCESS);
	board_arm("%s", faults);
	controller_park();
	return board_disarm();
}

static unsigned resume(const char *faults)
{
	board_arm("%s", faults);
	CHECK_RESUMES();
	return board_disarm();
}

static bool struck(const char *name)
{
	return strstr(board_struck(), name) != NULL;
}

/* Neither this nor that: few copies, as large as they come.  */
static void all_is_refused(void)
{
	test_at("no pinned memory at all");
	changed_park(REFUSED ",cuMemHostAlloc:OUT_OF_MEMORY:1+");
	CHECK(struck("cuMemHostRegister") && struck("cuMemHostAlloc"));
	resume("cuMemHostAlloc:OUT_OF_MEMORY:1+");
	CHECK(struck("cuMemHostAlloc"));
	all_is_right();
	CHECK(changed_park("cuMemHostAlloc:OUT_OF_MEMORY:1+" COUNTED("cuMemcpyDtoHAsync")) < LARGE_PIECES);
	CHECK(resume("cuMemHostAlloc:OUT_OF_MEMORY:1+" COUNTED("cuMemcpyHtoDAsync")) < LARGE_PIECES);
	all_is_right();
	CHECK_EQUAL(board_registered_bytes(), 0);
}

/* Without its events the ring is nothing, and its memory is given back.  */
static void events_are_refused(void)
{
	unsigned times = 0;

	for (;; times++) {
		test_at("an event refused, %u", times);
		contents_fill(CONTENTS_OTHER_GPU);
		changed_park("cuEventCreate:OUT_OF_MEMORY:5" COUNTED("cuMemHostAlloc") COUNTED("cuMemFreeHost"));
		CHECK(struck("cuMemHostAlloc"));
		CHECK_EQUAL(struck("cuMemFreeHost"), struck("cuEventCreate"));
		resume("cuMemHostAlloc:OUT_OF_MEMORY:1+");
		all_is_right();
		if (!struck("cuMemHostAlloc")) /* it was there by then, of each GPU */
			break;
	}
	CHECK(times > 2);
}

static void ring_is_taken(void)
{
	unsigned n;

	test_at("the ring");
	changed_park(REFUSED); /* no slab of it is registered from here on */
	resume("");
	n = changed_park("cuMemHostAlloc:UNKNOWN:1+" COUNTED("cuMemcpyDtoHAsync"));
	CHECK(n >= LARGE_PIECES && !struck("cuMemHostAlloc"));
	n = resume("cuMemHostAlloc:UNKNOWN:1+" COUNTED("cuMemcpyHtoDAsync"));
	CHECK(n >= LARGE_PIECES && !struck("cuMemHostAlloc"));
	all_is_right();
	CHECK_EQUAL(board_registered_bytes(), 0);
}

/* A window of it is looked at when the GPU has all of it, though threads give the GPU the last copies late.  */
static void streams_in(void)
{
	uint64_t mended = page_read().mended_chunks;

	test_at("the ring, part after part");
	changed_park(REFUSED);
	CHECK_EQUAL(controller_reply(controller_command(AFFINODE_COMMAND_RESUME, AFFINODE_MOVE_STREAM)).status, AFFINODE_OK);
	all_is_right();
	CHECK_EQUAL(page_read().mended_chunks, mended);
}

/* It is host memory like what is kept of the contents, and the first to be given back.  */
static void ring_is_counted(void)
{
	uint64_t kept;
	unsigned rings;

	test_at("the ring given back");
	PAGE_UNTIL(page.state == AFFINODE_STATE_RESIDENT && page.retained_bytes > LARGE);
	kept = page_read().retained_bytes;
	board_arm("cuMemFreeHost:TAKE=0:1+");
	controller_command(AFFINODE_COMMAND_TRIM, kept - 1);
	PAGE_UNTIL(page.retained_bytes < kept);
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_NOTHING); /* it has given the other GPU's back, too */
	rings = board_disarm();
	CHECK(rings > 0);
	CHECK_EQUAL(page_read().retained_bytes, kept - rings * RING);
	controller_trim();
	contents_fill(CONTENTS_OTHER_GPU);
	changed_park(REFUSED COUNTED("cuMemHostAlloc"));
	CHECK(struck("cuMemHostAlloc")); /* and made again */
	resume("");
	all_is_right();
	CHECK_EQUAL(board_registered_bytes(), 0);
}

/* Blocks come and go, so that chunks lie in slots of many slabs.  */
static void scattered(void)
{
	for (unsigned round = 0; round < test_rounds(3); round++) {
		test_at("scattered, round %u", round);
		for (unsigned i = 0; i < SMALL; i++) {
			if (test_random(&state) % 2)
				continue;
			if (small[i].at)
				CUDA(MemFree(small[i].at));
			small[i].at = 0;
			if (test_random(&state) % 4 == 0)
				continue;
			small[i].bytes = MiB(2) + test_random(&state) % 24 * (MiB(1) / 4);
			CUDA(MemAlloc(&small[i].at, small[i].bytes));
			fill(small[i].at, small[i].bytes, &small[i].seed);
		}
		contents_fill(CONTENTS_OTHER_GPU);
		changed_park(REFUSED);
		resume("");
		all_is_right();
		CHECK_EQUAL(board_registered_bytes(), 0);
	}
}

/* One that was joined is listed for a moment more, as one that ends (PF_EXITING of linux/sched.h).  */
static bool is_at_work(const char *task)
{
	char path[sizeof("/proc/self/task//stat") + NAME_MAX], line[512], *after_name = NULL;
	unsigned flags = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%s/stat", task);
	file = fopen(path, "re");
	if (!file)
		return false;
	if (fgets(line, sizeof(line), file))
		after_name = strrchr(line, ')');
	fclose(file);
	return after_name && sscanf(after_name + 1, " %*c %*d %*d %*d %*d %*d %u", &flags) == 1 && !(flags & 0x4);
}

static unsigned threads_now(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;
	unsigned n = 0;

	CHECK(tasks != NULL);
	while ((task = readdir(tasks)) != NULL)
		n += task->d_name[0] != '.' && is_at_work(task->d_name);
	closedir(tasks);
	return n;
}

/* At any piece; no call goes on for long, and no thread stays.  */
static void revoked(unsigned nth)
{
	unsigned before = threads_now(), after;
	struct affinode_reply reply;
	uint32_t epoch;

	test_at("revoked at copy %u", nth);
	do {
		change_large();
		board_arm("cuMemcpyDtoHAsync:HOLD:%u", nth);
		epoch = controller_command(AFFINODE_COMMAND_PARK, 0);
	} while (!board_holds_in(epoch)); /* this machine is too slow for the mover's patience */
	CHECK_EQUAL(contents_change(CONTENTS_ONE_CHUNK), CUDA_SUCCESS); /* without having waited */
	board_arm("cuMemcpyDtoHAsync:TAKE=0:1+");
	reply = controller_reply(epoch);
	after = board_disarm();
	CHECK_EQUAL(reply.status, AFFINODE_REVOKED);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_RESIDENT);
	CHECK(after <= IN_STRETCH + PIECES);
	UNTIL(threads_now() <= before);
	all_is_right();
}

#ifndef SHIM_LINKED /* sanitizers choose stacks themselves */
/* No thread can be had, since no address space has room for its stack: the mover does it alone.  */
static void without_threads(void)
{
	pthread_attr_t usual, huge;
	unsigned before = threads_now();
	uint32_t epoch;
	bool held;
	int status;

	test_at("without threads");
	CHECK_EQUAL(pthread_getattr_default_np(&usual), 0);
	CHECK_EQUAL(pthread_getattr_default_np(&huge), 0);
	CHECK_EQUAL(pthread_attr_setstacksize(&huge, (size_t)1 << 48), 0);
	for (int with = 1; with >= 0; with--) {
		CHECK_EQUAL(pthread_setattr_default_np(with ? &usual : &huge), 0);
		do {
			change_large();
			board_arm("cuMemcpyDtoHAsync:HOLD:10");
			epoch = controller_command(AFFINODE_COMMAND_PARK, 0);
			held = board_holds_in(epoch);
			if (held)
				UNTIL(with ? threads_now() > before : threads_now() <= before);
			board_disarm();
			status = controller_reply(epoch).status;
		} while (status == AFFINODE_BUSY);
		CHECK_EQUAL(status, AFFINODE_OK);
		CHECK(held);
		resume("");
		all_is_right();
	}
	CHECK_EQUAL(pthread_setattr_default_np(&usual), 0);
}
#endif

static void reset(void)
{
	CUDA(DevicePrimaryCtxReset(0));
}

/* While its ring is given back, the context is ended: that waits, for this only.  */
static void context_ends_meanwhile(void)
{
	struct call call;

	test_at("a context ended while its ring is given back");
	board_arm("cuMemFreeHost:HOLD:1");
	controller_command(AFFINODE_COMMAND_TRIM, 0);
	UNTIL(board_holds());
	call_begin(&call, reset);
	CHECK(call_waits(&call));
	board_disarm();
	call_end(&call);
	controller_trim(); /* what the context lets go of when the mover has looked stays until the next time */
}

/* A context that comes after it has a ring of its own.  */
static void context_ends(void)
{
	CUdeviceptr at;
	uint32_t seed;

	test_at("another context");
	context_ends_meanwhile();
	cuda_start();
	CUDA(MemAlloc(&at, LARGE));
	fill(at, LARGE, &seed);
	board_arm("%s", REFUSED COUNTED("cuMemHostAlloc"));
	controller_park();
	CHECK(board_disarm() > 0 && struck("cuMemHostAlloc"));
	CHECK(resume("cuMemHostAlloc:UNKNOWN:1+" COUNTED("cuMemcpyHtoDAsync")) >= LARGE_PIECES);
	CHECK(!struck("cuMemHostAlloc"));
	CHECK(holds_pattern(at, LARGE, seed, 0));
}

int main(int argc, char **argv)
{
	setenv("AFFINODE_SIM_GPUS", "2", 1);
	contents_begin(argc, argv);
	state = test_seed;
	large_make();
	all_is_refused();
	large_free();
	events_are_refused();
	large_make();
	ring_is_taken();
	streams_in();
	ring_is_counted();
	for (unsigned nth = 5; nth < PIECES; nth += 9)
		revoked(nth);
#ifndef SHIM_LINKED
	without_threads();
#endif
	large_free();
	scattered();
	context_ends();
	return 0;
}
