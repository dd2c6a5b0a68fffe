/* Memory that is not to be had. Host memory that cannot be pinned is used as it is; where there is none the process stays
 * resident and says so. A GPU that another process fills before a resume, or in the midst of it, leaves the process parked
 * with all of its contents and nothing of it on the GPU.  */
#include "board.h"
#include "contents.h"
#include "harness.h"
#include "spilling.h"

#include <sys/resource.h>

static void changed_park(void)
{
	contents_change_now(CONTENTS_BROKEN);
	controller_park();
}

/* Before anything was pinned; afterwards the process may keep what it has.  */
static void registration_is_refused(void)
{
	test_at("registration refused");
	board_arm("cuMemHostRegister:OPERATING_SYSTEM:1+,cuMemHostAlloc:OUT_OF_MEMORY:1+");
	for (int i = 0; i < 2; i++) {
		changed_park();
		CHECK_RESUMES();
		contents_are_right();
	}
	CHECK_EQUAL(board_registered_bytes(), 0);
	board_disarm();
}

/* The nth creation finds that a foreign process was faster; false: there are not so many.  */
static bool foreign_takes_room(unsigned nth)
{
	size_t before = cuda_free_bytes(), parked;
	struct affinode_reply reply;
	struct call call;
	bool met;

	test_at("the GPU full at creation %u", nth);
	changed_park();
	parked = cuda_free_bytes(); /* bookkeeping passes the gate */
	board_arm("cuMemCreate:TAKE=1TiB:%u", nth);
	reply = controller_reply(controller_command(AFFINODE_COMMAND_RESUME, 0));
	met = board_disarm() > 0;
	if (met) {
		CHECK_EQUAL(reply.status, AFFINODE_NO_GPU_ROOM);
		CHECK(reply.text[0] != 0);
		CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
		call_begin(&call, contents_call);
		PAGE_UNTIL(page.want == 1);
		CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_NO_GPU_ROOM);
		board_arm("cuMemGetInfo:TAKE=0:1");
		CHECK_EQUAL(cuda_free_bytes(), parked);
		board_disarm();
		reply = controller_reply(controller_command(AFFINODE_COMMAND_RESUME, 0));
		call_end(&call);
	}
	CHECK_EQUAL(reply.status, AFFINODE_OK);
	contents_are_right();
	CHECK_EQUAL(cuda_free_bytes(), before);
	return met;
}

/* What the driver will not let go of stays, until it does.  */
static void pinned_memory_is_not_let_go(void)
{
	test_at("unregistering refused");
	controller_trim(); /* what was refused when it was made is not tried again */
	changed_park();
	CHECK_RESUMES();
	CHECK(board_registered_bytes() > 0 && page_read().retained_bytes > 0);
	board_arm("cuMemHostUnregister:UNKNOWN:1+");
	controller_command(AFFINODE_COMMAND_TRIM, 0);
	UNTIL(board_met() > 0);
	changed_park();
	CHECK_RESUMES();
	CHECK(board_registered_bytes() > 0);
	board_disarm();
	controller_trim();
	CHECK_EQUAL(board_registered_bytes(), 0);
	contents_are_right();
}

#ifndef SHIM_LINKED /* sanitizers need address space of their own */
static size_t address_space(void)
{
	FILE *file = fopen("/proc/self/statm", "re");
	unsigned long pages;

	CHECK(file != NULL);
	CHECK_EQUAL(fscanf(file, "%lu", &pages), 1);
	fclose(file);
	return pages * 4096;
}

static void limit(size_t bytes)
{
	struct rlimit rlimit;

	CHECK_EQUAL(getrlimit(RLIMIT_AS, &rlimit), 0);
	rlimit.rlim_cur = bytes ? bytes : rlimit.rlim_max;
	CHECK_EQUAL(setrlimit(RLIMIT_AS, &rlimit), 0);
}

/* Ever more of it, until a park succeeds. The contents grow first, or what is kept from earlier parks would do.  */
static void host_memory_is_short(void)
{
	CUdeviceptr more;
	int status;

	more = cuda_block(MiB(80), 321);
	for (size_t spare = 0;; spare += MiB(8)) {
		struct affinode_reply reply;

		test_at("%zu bytes of address space to spare", spare);
		CHECK(spare < MiB(400));
		limit(address_space() + spare);
		do
			reply = controller_reply(controller_command(AFFINODE_COMMAND_PARK, 0));
		while (reply.status == AFFINODE_BUSY); /* this machine is too slow for the mover's patience */
		limit(0);
		status = reply.status;
		if (status == AFFINODE_OK)
			break;
		CHECK_EQUAL(status, AFFINODE_NO_HOST_ROOM);
		CHECK(reply.text[0] != 0);
		CHECK_EQUAL(page_read().state, AFFINODE_STATE_RESIDENT);
		CHECK(holds_pattern(more, MiB(80), 321, 0));
		contents_are_right();
	}
	/* Coming back takes next to none.  */
	limit(address_space() + MiB(1));
	status = controller_move(AFFINODE_COMMAND_RESUME);
	limit(0);
	CHECK_EQUAL(status, AFFINODE_OK);
	CHECK(holds_pattern(more, MiB(80), 321, 0));
	contents_are_right();
	CUDA(MemFree(more));
}

/* What is on the disk stays there.  */
static void no_memory_to_read_into(void)
{
	struct affinode_reply reply;
	uint64_t on_disk;

	test_at("no memory to read into");
	contents_change_now(CONTENTS_ONE_CHUNK);
	park_to_disk();
	PAGE_UNTIL(page.retained_bytes == 0);
	on_disk = page_read().disk_bytes;
	limit(address_space() + MiB(1));
	reply = controller_reply(controller_command(AFFINODE_COMMAND_READ_BACK, ALL));
	limit(0);
	CHECK_EQUAL(reply.status, AFFINODE_NO_HOST_ROOM);
	CHECK_EQUAL(page_read().disk_bytes, on_disk);
	CHECK_EQUAL(page_read().copy_bytes, 0);
	CHECK_RESUMES();
	contents_are_right();
}
#endif

int main(int argc, char **argv)
{
	unsigned nth = 1;

	contents_begin(argc, argv);
	contents_are_right();
	registration_is_refused();
	pinned_memory_is_not_let_go();
	while (foreign_takes_room(nth))
		nth++;
	printf("the GPU was full at each of %u creations\n", nth - 1);
	CHECK(nth > 3);
#ifndef SHIM_LINKED
	host_memory_is_short();
	spilling_begin();
	no_memory_to_read_into();
#endif
	return 0;
}
