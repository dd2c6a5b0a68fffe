/* Moves of an exchange where host memory is short: the process that comes in gives its host memory back window by window, and
 * the one that goes out takes lots as they come. Where that ends early the process is parked in part: what has arrived stays on the
 * GPU, the host has the rest, and either can follow. Each byte is in one of the two at every moment.  */
#include "board.h"
#include "contents.h"
#include "harness.h"
#include "spilling.h"

#include <fcntl.h>
#include <sys/stat.h>

#define LOT MiB(32)
/* More than a park begins with; more than a window.  */
#define BIG MiB(288)
#define SMALLER MiB(160)
/* What a park that hands over begins with.  */
#define FIRST_LOTS (AFFINODE_WINDOW_BYTES / LOT)

static CUdeviceptr block;
static size_t size;
static uint32_t seed = 4711;
static unsigned lent, ended, lots; /* the last: for all that is to be copied */
static size_t free_when_resident;
static int64_t registered; /* beside slabs */

static void lend(unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		controller_lend(LOT);
	lent += count;
}

static unsigned lots_lent(void)
{
	ended += controller_count(AFFINODE_NOTIFY_LOT_END);
	return lent - ended;
}

static void change(void)
{
	CHECK_EQUAL(launch_pattern(NULL, block, size, ++seed), CUDA_SUCCESS);
	contents_change_now(CONTENTS_BROKEN);
}

static void is_resident(void)
{
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_RESIDENT);
	CHECK(holds_pattern(block, size, seed, 0));
	contents_are_right();
	CHECK_EQUAL(cuda_free_bytes(), free_when_resident);
}

/* Nothing of the host's is left with it.  */
static void has_no_host_memory(void)
{
	struct affinode_page page;

	UNTIL(lots_lent() == 0);
	PAGE_UNTIL(page.lot_bytes == 0);
	page = page_read();
	CHECK_EQUAL(page.copy_bytes, 0);
	CHECK(page.retained_bytes < LOT * 4); /* the ring */
	UNTIL(board_registered_bytes() == registered);
}

/* Each byte is on the GPU or in the host, and the GPU has no more of it than that.  */
static void is_parked_in_part(size_t free_when_parked)
{
	struct affinode_page page = page_read();

	CHECK_EQUAL(page.state, AFFINODE_STATE_PARKED);
	CHECK(page.gpus[0].resident_bytes > 0 && page.gpus[0].parked_bytes > 0);
	CHECK_EQUAL(page.gpus[0].resident_bytes + page.gpus[0].parked_bytes, size + contents_bytes());
	CHECK_EQUAL(cuda_free_bytes(), free_when_parked - page.gpus[0].resident_bytes);
	CHECK(page.copy_bytes <= page.gpus[0].parked_bytes + LOT);
}

static struct affinode_reply move(uint32_t command, uint64_t how)
{
	struct affinode_reply reply = controller_reply(controller_command(command, how));

	test_at("move %u: %s", command, reply.text);
	return reply;
}

static uint32_t prepare(void)
{
	return controller_prepare(AFFINODE_COMMAND_PARK, LOTS_ALONE | HANDS_OVER);
}

/* With lots that come when those that it begins with are used: as many as it says that it lacks. They are registered once it is
 * parked.  */
static void park(void)
{
	unsigned first = lots < FIRST_LOTS ? lots : FIRST_LOTS, lacks;
	uint32_t epoch;

	change();
	lend(first);
	epoch = prepare();
	lacks = (unsigned)((controller_lacks(epoch) + LOT - 1) / LOT);
	CHECK_EQUAL(first + lacks, lots);
	controller_decide(epoch, true);
	UNTIL(cuda_free_bytes() > free_when_resident + MiB(64));
	lend(lacks);
	CHECK_EQUAL(controller_reply(epoch).status, AFFINODE_OK);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	CHECK_EQUAL(page_read().gpus[0].resident_bytes, 0);
	UNTIL(board_registered_bytes() == registered + (int64_t)(lots * LOT));
}

/* How many lots it takes is known from then on.  */
static void without_host_memory(void)
{
	struct affinode_reply reply;

	reply = controller_reply(prepare());
	CHECK_EQUAL(reply.status, AFFINODE_NO_HOST_ROOM);
	CHECK(reply.bytes > size);
	lots = (unsigned)((reply.bytes + LOT - 1) / LOT);
	is_resident();
	lend(lots < FIRST_LOTS ? lots - 1 : FIRST_LOTS - 1);
	CHECK_EQUAL(controller_reply(prepare()).status, AFFINODE_NO_HOST_ROOM);
	is_resident();
	has_no_host_memory();
}

static void allocate(size_t bytes)
{
	size = bytes;
	CUDA(MemAlloc(&block, size));
	free_when_resident = cuda_free_bytes();
	change();
}

static void there_and_back(void)
{
	CUdeviceptr rest;
	uint32_t epoch;

	park();
	CHECK_EQUAL(page_read().lot_bytes, lots * LOT);
	rest = cuda_take(MiB(200));
	epoch = controller_command(AFFINODE_COMMAND_RESUME, HANDS_OVER);
	UNTIL(lots_lent() <= lots - 4);
	CHECK(!controller_replied(epoch));
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_RESUMING);
	cuda_give(rest);
	CHECK_EQUAL(controller_reply(epoch).status, AFFINODE_OK);
	has_no_host_memory();
	is_resident();
}

/* Park, and come in as far as there is room for, which the rest of the GPU's memory in *rest is not.  */
static size_t come_in_part(CUdeviceptr *rest, bool aborted)
{
	size_t free_when_parked;
	uint32_t epoch;

	park();
	*rest = cuda_take(MiB(110));
	free_when_parked = cuda_free_bytes();
	epoch = controller_command(AFFINODE_COMMAND_RESUME, HANDS_OVER);
	UNTIL(lots_lent() <= lots - 2);
	if (aborted)
		controller_decide(epoch, false);
	CHECK_EQUAL(controller_reply(epoch).status, aborted ? AFFINODE_REVOKED : AFFINODE_NO_GPU_ROOM);
	is_parked_in_part(free_when_parked);
	return free_when_parked;
}

/* What another kind of resume has brought, the host keeps a copy of.  */
static void give_back_retained(uint64_t how)
{
	if (how != HANDS_OVER)
		controller_command(AFFINODE_COMMAND_TRIM, 0);
	has_no_host_memory();
}

static void room_does_not_come(bool aborted, uint64_t then)
{
	CUdeviceptr rest;

	come_in_part(&rest, aborted);
	cuda_give(rest);
	CHECK_EQUAL(move(AFFINODE_COMMAND_RESUME, then).status, AFFINODE_OK);
	is_resident();
	give_back_retained(then);
}

/* In the first window, or in one for which the room comes late.  */
static void comes_back_wrong(bool late, uint64_t then)
{
	size_t free_when_parked;
	CUdeviceptr rest;
	uint32_t epoch;

	park();
	free_when_parked = cuda_free_bytes();
	rest = cuda_take(MiB(110));
	if (!late)
		board_arm("cuMemcpyHtoDAsync:CORRUPT=1MiB:1+");
	epoch = controller_command(AFFINODE_COMMAND_RESUME, HANDS_OVER);
	if (late) {
		UNTIL(lots_lent() <= lots - 2);
		board_arm("cuMemcpyHtoDAsync:CORRUPT=1MiB:1+");
		cuda_give(rest);
	}
	CHECK_EQUAL(controller_reply(epoch).status, AFFINODE_FAILED);
	CHECK(board_disarm() > 0);
	if (late)
		is_parked_in_part(free_when_parked);
	else
		cuda_give(rest);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	CHECK_EQUAL(move(AFFINODE_COMMAND_RESUME, then).status, AFFINODE_OK);
	is_resident();
	give_back_retained(then);
}

/* What has arrived goes out again, while a call waits.  */
static void the_rest_is_parked(void)
{
	size_t free_when_parked;
	struct call call;
	CUdeviceptr rest;

	free_when_parked = come_in_part(&rest, true);
	CHECK_EQUAL(move(AFFINODE_COMMAND_PARK, AFFINODE_MOVE_STREAM | LOTS_ALONE).status, AFFINODE_NO_HOST_ROOM);
	is_parked_in_part(free_when_parked);
	CHECK_EQUAL(move(AFFINODE_COMMAND_PARK, LOTS_ALONE).status, AFFINODE_NOTHING);
	call_begin(&call, contents_call);
	PAGE_UNTIL(page.state == AFFINODE_STATE_QUEUED);
	lend(lots - lots_lent() + 1);
	CHECK_EQUAL(move(AFFINODE_COMMAND_PARK, AFFINODE_MOVE_STREAM | LOTS_ALONE).status, AFFINODE_OK);
	PAGE_UNTIL(page.state == AFFINODE_STATE_QUEUED && page.want == 1);
	CHECK_EQUAL(page_read().gpus[0].resident_bytes, 0);
	CHECK_EQUAL(cuda_free_bytes(), free_when_parked);
	CHECK_EQUAL(move(AFFINODE_COMMAND_PARK, AFFINODE_MOVE_STREAM | LOTS_ALONE).status, AFFINODE_NOTHING);
	cuda_give(rest);
	CHECK_EQUAL(move(AFFINODE_COMMAND_RESUME, HANDS_OVER).status, AFFINODE_OK);
	call_end(&call);
	is_resident();
	has_no_host_memory();
}

/* What has not left is on the GPU, and holds no lot.  */
static void lots_do_not_come(void)
{
	struct affinode_reply reply;
	uint32_t epoch;

	change();
	lend(FIRST_LOTS);
	epoch = prepare();
	controller_decide(epoch, true);
	reply = controller_reply(epoch);
	CHECK_EQUAL(reply.status, AFFINODE_NO_HOST_ROOM);
	CHECK(reply.bytes > size);
	is_parked_in_part(free_when_resident + size + contents_bytes());
	CHECK_EQUAL(move(AFFINODE_COMMAND_RESUME, HANDS_OVER).status, AFFINODE_OK);
	is_resident();
	has_no_host_memory();
}

static void freed_in_part(void)
{
	CUdeviceptr rest;

	come_in_part(&rest, true);
	cuda_give(rest);
	CUDA(MemFree(block));
	CHECK_EQUAL(move(AFFINODE_COMMAND_RESUME, HANDS_OVER).status, AFFINODE_OK);
	contents_are_right();
	CHECK_EQUAL(cuda_free_bytes(), free_when_resident + size);
	has_no_host_memory();
	allocate(BIG);
	is_resident();
}

/* What comes in from the disk gives no host memory, and what of it has not changed leaves without any.  */
static void on_disk_in_part(uint64_t most)
{
	size_t free_when_parked;
	uint64_t on_disk;
	CUdeviceptr rest;
	uint32_t epoch;
	int status;

	park();
	CHECK_EQUAL(controller_reply(controller_spill(most, spill_folder)).status, AFFINODE_OK);
	on_disk = page_read().disk_bytes;
	CHECK(on_disk >= most || page_read().copy_bytes == 0);
	rest = cuda_take(MiB(110));
	free_when_parked = cuda_free_bytes();
	epoch = controller_command(AFFINODE_COMMAND_RESUME, HANDS_OVER);
	PAGE_UNTIL(page.gpus[0].resident_bytes >= MiB(64));
	controller_decide(epoch, false);
	status = controller_reply(epoch).status;
	CHECK(status == AFFINODE_REVOKED || status == AFFINODE_NO_GPU_ROOM); /* its two seconds had passed */
	is_parked_in_part(free_when_parked);
	CHECK_EQUAL(page_read().disk_bytes, on_disk);
	lend(lots - lots_lent() + 1);
	CHECK_EQUAL(move(AFFINODE_COMMAND_PARK, AFFINODE_MOVE_STREAM | LOTS_ALONE).status, AFFINODE_OK);
	CHECK_EQUAL(page_read().gpus[0].resident_bytes, 0);
	CHECK_EQUAL(page_read().disk_bytes, on_disk);
	cuda_give(rest);
	CHECK_EQUAL(move(AFFINODE_COMMAND_RESUME, HANDS_OVER).status, AFFINODE_OK);
	is_resident();
	has_no_host_memory();
}

/* From some window on. What has arrived by then stays, and the rest comes when the disk does.  */
static void disk_cannot_be_read(void)
{
	static unsigned char kept[BIG];
	size_t free_when_parked;
	CUdeviceptr rest;
	uint32_t epoch;
	ssize_t bytes;
	int fd;

	park();
	CHECK_EQUAL(controller_reply(controller_spill(ALL, spill_folder)).status, AFFINODE_OK);
	UNTIL(lots_lent() == 0);
	fd = spill_descriptor();
	CHECK(fd >= 0);
	CHECK_EQUAL(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT), 0);
	bytes = pread(fd, kept, sizeof(kept), 0);
	CHECK(bytes >= (ssize_t)size && bytes < (ssize_t)sizeof(kept));
	free_when_parked = cuda_free_bytes();
	rest = cuda_take(MiB(110));
	epoch = controller_command(AFFINODE_COMMAND_RESUME, HANDS_OVER);
	PAGE_UNTIL(page.gpus[0].resident_bytes >= MiB(64));
	CHECK_EQUAL(ftruncate(fd, 0), 0);
	cuda_give(rest);
	for (int i = 0; i < 2; i++) {
		struct affinode_reply reply = controller_reply(epoch);

		CHECK_EQUAL(reply.status, AFFINODE_FAILED);
		CHECK(strstr(reply.text, "disk") != NULL);
		is_parked_in_part(free_when_parked);
		epoch = controller_command(AFFINODE_COMMAND_RESUME, HANDS_OVER);
	}
	CHECK_EQUAL(controller_reply(epoch).status, AFFINODE_FAILED);
	CHECK_EQUAL(pwrite(fd, kept, (size_t)bytes, 0), bytes);
	CHECK_EQUAL(move(AFFINODE_COMMAND_RESUME, HANDS_OVER).status, AFFINODE_OK);
	is_resident();
	has_no_host_memory();
}

/* The last: a process that is told so does not come back.  */
static void ends_while_it_waits(void)
{
	uint32_t epoch;

	change();
	lend(FIRST_LOTS);
	epoch = prepare();
	controller_decide(epoch, true);
	UNTIL(cuda_free_bytes() > free_when_resident + MiB(64));
	controller_command(AFFINODE_COMMAND_DYING, 0);
	CHECK_EQUAL(controller_reply(epoch).status, AFFINODE_FAILED);
}

int main(int argc, char **argv)
{
	contents_begin(argc, argv);
	spilling_begin();
	registered = board_registered_bytes();
	allocate(SMALLER);
	without_host_memory();
	room_does_not_come(true, HANDS_OVER);
	room_does_not_come(false, AFFINODE_MOVE_STREAM);
	comes_back_wrong(false, HANDS_OVER);
	comes_back_wrong(true, 0);
	the_rest_is_parked();
	on_disk_in_part(MiB(64));
	on_disk_in_part(ALL);
	disk_cannot_be_read();
	freed_in_part();
	without_host_memory();
	there_and_back();
	lots_do_not_come();
	ends_while_it_waits();
	return 0;
}
