/* The disk fails at any one write of a spill, or at any one read of a resume or into host memory, or at all from then on: it is
 * full, it cannot be written or read, it takes or gives less than it was asked for, or gives something else once. Each chunk is in memory, on disk or on the GPU. So where the
 * process is parked in part, and where only a part of it is on disk.  */
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "board.h"
#include "contents.h"
#include "spilling.h"
#include "streamed.h"

/* Not at length: every third call, from any one on.  */
#define STRIDE 3
/* What the shim keeps on disk has a descriptor from there on (spill_file.c).  */
#define DESCRIPTOR_FROM 512
/* More than a window of moves that hand over.  */
#define BYTES MiB(160)
#define DIRECT 4096
/* Chunks that are not zero, at least, and in the process that has only some on disk.  */
#define WRITTEN 6
#define PART_WRITTEN 3

enum way { WRITES, READS };
enum { LESS = -1, ELSE = -2 }; /* half of it, and half of the rest …; other contents */

static struct {
	_Atomic int way, error;
	_Atomic unsigned from, until; /* which calls, counted from 1 */
	_Atomic unsigned calls, met;
} disk;

static void disk_fails(enum way way, int error, unsigned nth, bool for_good)
{
	atomic_store(&disk.from, 0);
	atomic_store(&disk.way, way);
	atomic_store(&disk.error, error);
	atomic_store(&disk.calls, 0);
	atomic_store(&disk.met, 0);
	atomic_store(&disk.until, for_good ? UINT32_MAX : nth);
	atomic_store(&disk.from, nth);
}

/* How often it failed.  */
static unsigned disk_works(void)
{
	atomic_store(&disk.from, 0);
	return atomic_load(&disk.met);
}

/* 0: the call is made as it is.  */
static int failure(enum way way, int fd)
{
	unsigned from = atomic_load(&disk.from), call;

	if (fd < DESCRIPTOR_FROM || !from || (int)way != atomic_load(&disk.way))
		return 0;
	call = atomic_fetch_add(&disk.calls, 1) + 1;
	if (call < from || call > atomic_load(&disk.until))
		return 0;
	atomic_fetch_add(&disk.met, 1);
	return atomic_load(&disk.error);
}

/* O_DIRECT wants whole sectors.  */
static size_t less(size_t bytes)
{
	return bytes > DIRECT ? bytes / 2 / DIRECT * DIRECT : bytes;
}

/* For the shim.  */
ssize_t pwrite(int fd, const void *from, size_t bytes, off_t at)
{
	int error = failure(WRITES, fd);

	if (error > 0) {
		errno = error;
		return -1;
	}
	return syscall(SYS_pwrite64, fd, from, error == LESS ? less(bytes) : bytes, at);
}

ssize_t pread(int fd, void *to, size_t bytes, off_t at)
{
	int error = failure(READS, fd);

	if (error > 0) {
		errno = error;
		return -1;
	}
	bytes = (size_t)syscall(SYS_pread64, fd, to, error == LESS ? less(bytes) : bytes, at);
	if (error == ELSE && (ssize_t)bytes > 0)
		((unsigned char *)to)[bytes - 1] ^= 1;
	return (ssize_t)bytes;
}

static const char *name_of(int error)
{
	return error == ENOSPC ? "no room" : error == EIO ? "an error" : error == LESS ? "less" : "something else";
}

/* Each chunk that is not zero is in memory or on disk, or its place on the GPU is its own.  */
static void is_parked(void)
{
	struct affinode_page page = page_read();

	CHECK_EQUAL(page.state, AFFINODE_STATE_PARKED);
	CHECK_EQUAL(page.gpus[0].resident_bytes + page.gpus[0].parked_bytes, streamed_bytes + contents_bytes());
}

static void park_anew(void)
{
	controller_reply(controller_spill(0, spill_folder)); /* everything is written again */
	streamed_change();
	streamed_park();
}

/* False: it makes no such write.  */
static bool spill_fails_at(int error, unsigned nth, bool for_good, bool in_part)
{
	struct affinode_reply reply;
	uint64_t in_memory;
	unsigned met;

	park_anew();
	test_at("spill%s, %s at write %u%s", in_part ? " in part" : "", name_of(error), nth, for_good ? "+" : "");
	if (in_part)
		contents_come_in_part(3);
	in_memory = page_read().copy_bytes;
	disk_fails(WRITES, error, nth, for_good);
	reply = spill_all();
	met = disk_works();
	if (!met || error == LESS)
		CHECK_EQUAL(reply.status, AFFINODE_OK);
	else
		CHECK_EQUAL(reply.status, AFFINODE_FAILED);
	if (reply.status != AFFINODE_OK)
		CHECK(strstr(reply.text, error == ENOSPC ? "no room" : "disk") != NULL);
	CHECK_EQUAL(page_read().disk_bytes, reply.bytes);
	CHECK_EQUAL(page_read().copy_bytes + page_read().disk_bytes, in_memory);
	is_parked();
	if (nth % 2) { /* the rest can go there now */
		reply = spill_all();
		CHECK(reply.status == AFFINODE_OK || reply.status == AFFINODE_NOTHING);
		CHECK_EQUAL(page_read().copy_bytes, 0);
	}
	streamed_come_back(nth);
	return met > 0;
}

/* Some or all of it is on disk. False: it makes no such read.  */
static bool resume_fails_at(int error, unsigned nth, bool for_good, uint64_t how, bool whole)
{
	struct affinode_reply reply;
	uint64_t on_disk;
	unsigned met;

	park_anew();
	test_at("resume %llx, %s on disk, %s at read %u%s", (unsigned long long)how, whole ? "all" : "some", name_of(error),
		nth, for_good ? "+" : "");
	CHECK_EQUAL(controller_reply(controller_spill(whole ? ALL : PART_WRITTEN * STREAMED_CHUNK, spill_folder)).status, AFFINODE_OK);
	on_disk = page_read().disk_bytes;
	disk_fails(READS, error, nth, for_good);
	reply = controller_reply(controller_command(AFFINODE_COMMAND_RESUME, how));
	met = disk_works();
	if (!met || error == LESS) {
		CHECK_EQUAL(reply.status, AFFINODE_OK);
		streamed_is_resident();
		return met > 0;
	}
	CHECK_EQUAL(reply.status, AFFINODE_FAILED);
	CHECK(strstr(reply.text, "disk") != NULL);
	is_parked();
	CHECK_EQUAL(page_read().disk_bytes, on_disk);
	if (nth % 3 == 0 && page_read().gpus[0].resident_bytes > 0) { /* what has arrived goes out again */
		reply = controller_reply(controller_command(AFFINODE_COMMAND_PARK, HANDS_OVER));
		CHECK_EQUAL(reply.status, AFFINODE_OK);
		CHECK_EQUAL(page_read().gpus[0].resident_bytes, 0);
	}
	streamed_come_back(nth);
	return true;
}

/* False: it makes no such read.  */
static bool read_back_fails_at(int error, unsigned nth, bool for_good, bool in_part)
{
	struct affinode_reply reply;
	uint64_t on_disk;
	unsigned met;

	park_anew();
	test_at("read back%s, %s at read %u%s", in_part ? " in part" : "", name_of(error), nth, for_good ? "+" : "");
	if (in_part)
		contents_come_in_part(3);
	CHECK_EQUAL(spill_all().status, AFFINODE_OK);
	on_disk = page_read().disk_bytes;
	disk_fails(READS, error, nth, for_good);
	reply = controller_reply(controller_command(AFFINODE_COMMAND_READ_BACK, ALL));
	met = disk_works();
	if (!met || error == LESS) {
		CHECK_EQUAL(reply.status, AFFINODE_OK);
	} else {
		CHECK_EQUAL(reply.status, AFFINODE_FAILED);
		CHECK(strstr(reply.text, "disk") != NULL);
		CHECK(page_read().disk_bytes > 0);
	}
	CHECK_EQUAL(page_read().copy_bytes, reply.bytes);
	CHECK_EQUAL(page_read().copy_bytes + page_read().disk_bytes, on_disk);
	is_parked();
	if (nth % 2) { /* the rest can be read now */
		controller_reply(controller_command(AFFINODE_COMMAND_READ_BACK, ALL));
		CHECK_EQUAL(page_read().disk_bytes, 0);
	}
	streamed_come_back(nth);
	return met > 0;
}

struct kind {
	int error;
	bool for_good;
};

int main(int argc, char **argv)
{
	static const struct kind of_writes[] = {{ENOSPC, true}, {EIO, false}, {EIO, true}, {LESS, true}},
				 of_reads[] = {{EIO, false}, {EIO, true}, {LESS, true}, {ELSE, false}};
	static const uint64_t ways[] = {0, AFFINODE_MOVE_STREAM, HANDS_OVER};
	unsigned stride = board_stride() < STRIDE ? board_stride() : STRIDE, nth;

	contents_begin(argc, argv);
	spilling_begin();
	streamed_allocate(BYTES);
	streamed_free_bytes = cuda_free_bytes();
	for (unsigned i = 0; i < 8; i++) {
		const struct kind *kind = &of_writes[i % 4];

		for (nth = 1 + test_seed % stride; spill_fails_at(kind->error, nth, kind->for_good, i / 4);)
			nth += stride;
		printf("%s at writes below %u%s\n", name_of(kind->error), nth, i / 4 ? ", parked in part" : "");
		CHECK(nth > WRITTEN);
	}
	for (unsigned i = 0; i < 18; i++) {
		const struct kind *kind = &of_reads[i % 3];
		bool whole = i / 3 % 2;

		for (nth = 1 + test_seed % stride; resume_fails_at(kind->error, nth, kind->for_good, ways[i / 6], whole);)
			nth += stride;
		printf("%s at reads below %u\n", name_of(kind->error), nth);
		CHECK(nth > (whole ? WRITTEN : PART_WRITTEN));
	}
	for (unsigned i = 0; i < 8; i++) {
		const struct kind *kind = &of_reads[i % 4];

		for (nth = 1 + test_seed % stride; read_back_fails_at(kind->error, nth, kind->for_good, i / 4);)
			nth += 2 * stride; /* each chunk is read twice */
		printf("%s at reads below %u, into host memory%s\n", name_of(kind->error), nth, i / 4 ? ", parked in part" : "");
		CHECK(nth > 2 * WRITTEN);
	}
	return 0;
}
