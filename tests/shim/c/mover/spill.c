/* Parked memory goes to disk and comes back: what the host had is free then, zeros and what has not changed are not written, and
 * whatever the disk does, each chunk is in memory or on disk. What comes back wrong is never seen.  */
#include "spilling.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "board.h"
#include "contents.h"

#define LARGE MiB(64)
#define CHUNK ((uint64_t)MiB(2))
#define LOTS 4
#define LOT ((uint64_t)MiB(64))

static CUdeviceptr large;

/* What the file system does not know.  */
static _Atomic int refused_flags;
static _Atomic unsigned refusals;

/* For the shim.  */
int openat(int folder, const char *name, int flags, ...)
{
	int refused = atomic_load(&refused_flags);
	va_list arguments;
	mode_t mode;

	va_start(arguments, flags);
	mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
	va_end(arguments);
	if ((flags & refused & O_TMPFILE) == O_TMPFILE) {
		atomic_fetch_add(&refusals, 1);
		errno = EOPNOTSUPP;
		return -1;
	}
	if (flags & refused & O_DIRECT) { /* as Linux does: the file is there all the same */
		int made = (int)syscall(SYS_openat, folder, name, flags & ~O_DIRECT, mode);

		atomic_fetch_add(&refusals, 1);
		if (made >= 0)
			close(made);
		errno = EINVAL;
		return -1;
	}
	return (int)syscall(SYS_openat, folder, name, flags, mode);
}

static void come_back(void)
{
	CHECK_RESUMES();
	contents_are_right();
}

static void nothing_stays_in_memory(void)
{
	struct affinode_reply reply;

	controller_park();
	CHECK_EQUAL(page_read().disk_bytes, 0);
	reply = spill_all();
	CHECK_EQUAL(reply.status, AFFINODE_OK);
	PAGE_UNTIL(page.retained_bytes == 0 && page.copy_bytes == 0);
	CHECK_EQUAL(page_read().disk_bytes, reply.bytes);
	CHECK_EQUAL(page_read().disk_written_bytes, reply.bytes);
	CHECK_EQUAL(page_read().gpus[0].parked_bytes, contents_bytes());
	CHECK(reply.bytes < contents_bytes()); /* zeros are nowhere */
	CHECK_EQUAL(spill_names(), 0);
	come_back();
	CHECK_EQUAL(page_read().last_resume_disk_bytes, reply.bytes);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_RESIDENT);
}

/* What was used on the way back from the disk, a parked process gives back when it is asked to.  */
static void gives_back_the_ring(void)
{
	contents_change_now(CONTENTS_ONE_CHUNK);
	park_to_disk();
	CHECK(page_read().retained_bytes > 0);
	controller_command(AFFINODE_COMMAND_TRIM, 0);
	PAGE_UNTIL(page.retained_bytes == 0 && page.copy_bytes == 0);
	come_back();
}

/* What the disk has of the last time is as good as a copy in memory.  */
static void unchanged_is_not_written_again(void)
{
	uint64_t before = page_read().disk_written_bytes;

	controller_park();
	CHECK_EQUAL(page_read().last_park_copied_bytes, 0);
	CHECK_EQUAL(page_read().copy_bytes, 0);
	CHECK_EQUAL(spill_all().status, AFFINODE_NOTHING);
	come_back();
	contents_change_now(CONTENTS_ONE_CHUNK);
	park_to_disk();
	CHECK_EQUAL(page_read().disk_written_bytes, before + CHUNK);
	come_back();
}

static void resident_forgets_what_is_kept(void)
{
	uint64_t kept = page_read().disk_bytes;

	CHECK(kept > 0);
	CHECK_EQUAL(controller_reply(controller_spill(0, spill_folder)).bytes, kept);
	PAGE_UNTIL(page.disk_bytes == 0);
	park_to_disk();
	come_back();
}

/* No more than was allowed; the rest stays where it is.  */
static void part(void)
{
	uint64_t in_memory;

	controller_spill(0, spill_folder);
	controller_park();
	in_memory = page_read().copy_bytes;
	CHECK_EQUAL(controller_reply(controller_spill(2 * CHUNK, spill_folder)).bytes, 2 * CHUNK);
	CHECK_EQUAL(page_read().disk_bytes, 2 * CHUNK);
	CHECK_EQUAL(page_read().copy_bytes, in_memory - 2 * CHUNK);
	come_back();
	controller_reply(controller_spill(0, spill_folder));
}

static struct affinode_reply read_back(uint64_t bytes)
{
	return controller_reply(controller_command(AFFINODE_COMMAND_READ_BACK, bytes));
}

/* Into host memory, as much as was asked for; what is parked there then need not be read on the way to the GPU.  */
static void reads_back(void)
{
	struct affinode_reply reply;
	uint64_t on_disk;

	test_at("read back");
	CHECK_EQUAL(read_back(ALL).status, AFFINODE_NOTHING); /* resident */
	park_to_disk();
	on_disk = page_read().disk_bytes;
	CHECK_EQUAL(read_back(CHUNK - 1).status, AFFINODE_NOTHING);
	CHECK_EQUAL(read_back(2 * CHUNK).bytes, 2 * CHUNK);
	CHECK_EQUAL(page_read().disk_bytes, on_disk - 2 * CHUNK);
	CHECK_EQUAL(page_read().copy_bytes, 2 * CHUNK);
	reply = read_back(ALL);
	CHECK_EQUAL(reply.status, AFFINODE_OK);
	CHECK_EQUAL(reply.bytes, on_disk - 2 * CHUNK);
	CHECK_EQUAL(page_read().disk_bytes, 0);
	CHECK_EQUAL(page_read().copy_bytes, on_disk);
	CHECK_EQUAL(read_back(ALL).status, AFFINODE_NOTHING);
	CHECK_EQUAL(spill_all().bytes, on_disk); /* to and fro */
	CHECK_EQUAL(read_back(ALL).bytes, on_disk);
	come_back();
	CHECK_EQUAL(page_read().last_resume_disk_bytes, 0);
	controller_park();
	CHECK_EQUAL(page_read().last_park_copied_bytes, 0);
	come_back();
}

/* The disk is full after so much.  */
static void full(void)
{
	struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY}, most = unlimited;
	struct affinode_reply reply;
	uint64_t in_memory;

	for (unsigned chunks = 0;; chunks++) {
		test_at("room for %u chunks", chunks);
		controller_park();
		in_memory = page_read().copy_bytes;
		most.rlim_cur = chunks * CHUNK + CHUNK / 2;
		CHECK_EQUAL(setrlimit(RLIMIT_FSIZE, &most), 0);
		reply = spill_all();
		CHECK_EQUAL(setrlimit(RLIMIT_FSIZE, &unlimited), 0);
		CHECK_EQUAL(page_read().copy_bytes + page_read().disk_bytes, in_memory);
		CHECK_EQUAL(page_read().disk_bytes, reply.bytes);
		come_back();
		controller_reply(controller_spill(0, spill_folder));
		if (reply.status == AFFINODE_OK)
			break;
		CHECK_EQUAL(reply.status, AFFINODE_FAILED);
		CHECK(strstr(reply.text, "no room") != NULL);
	}
}

static void *call(void *expected)
{
	CUDA(CtxSetCurrent(cuda_context));
	CHECK_EQUAL(contents_change(CONTENTS_MAPPED), (long)expected);
	return NULL;
}

/* A call waits while the disk cannot be read, and is served when it can be.  */
static void unreadable(void)
{
	static unsigned char kept[64 << 20];
	struct affinode_reply reply;
	pthread_t thread;
	ssize_t bytes;
	int fd;

	park_to_disk();
	fd = spill_descriptor();
	CHECK(fd >= 0);
	CHECK_EQUAL(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT), 0);
	bytes = pread(fd, kept, sizeof(kept), 0);
	CHECK(bytes > 0 && (size_t)bytes < sizeof(kept));
	CHECK_EQUAL(ftruncate(fd, 0), 0);
	thread_start(&thread, call, (void *)CUDA_SUCCESS);
	PAGE_UNTIL(page.want == 1);
	for (int i = 0; i < 2; i++) {
		reply = controller_reply(controller_command(AFFINODE_COMMAND_RESUME, 0));
		CHECK_EQUAL(reply.status, AFFINODE_FAILED);
		CHECK(strstr(reply.text, "disk") != NULL);
		PAGE_UNTIL(page.state == AFFINODE_STATE_QUEUED && page.want == 1);
	}
	CHECK_EQUAL(pwrite(fd, kept, (size_t)bytes, 0), bytes);
	CHECK_RESUMES();
	thread_join(thread);
	contents_are_right();
}

/* A program closes what it does not know, and opens files of its own by the same numbers.  */
static void closed(void)
{
	struct stat status;
	int fd, own;

	park_to_disk();
	fd = spill_descriptor();
	CHECK(fd >= 0);
	own = memfd_create("own", MFD_CLOEXEC);
	CHECK_EQUAL(dup2(own, fd), fd);
	CHECK_EQUAL(spill_all().status, AFFINODE_FAILED);
	come_back();
	CHECK_EQUAL(fstat(own, &status), 0);
	CHECK_EQUAL(status.st_size, 0);
	contents_change_now(CONTENTS_ONE_CHUNK);
	controller_park();
	CHECK_EQUAL(spill_all().status, AFFINODE_FAILED);
	come_back();
	CHECK_EQUAL(fstat(own, &status), 0);
	CHECK_EQUAL(status.st_size, 0);
	close(fd);
	close(own);
	controller_reply(controller_spill(0, spill_folder));
	park_to_disk(); /* by another file */
	come_back();
}

static void freed(void)
{
	uint64_t before;

	park_to_disk();
	before = page_read().disk_bytes;
	contents_free(CONTENTS_ONE_CHUNK);
	PAGE_UNTIL(page.disk_bytes == before - CHUNK);
	come_back();
	contents_allocate(CONTENTS_ONE_CHUNK);
}

/* It ends early for a call and at ABORT, and what is done by then is done.  */
static void ended_early(bool by_call)
{
	uint64_t in_memory;
	struct affinode_reply reply;
	uint32_t epoch;
	pthread_t thread;

	test_at("%s", by_call ? "a call" : "ABORT");
	controller_reply(controller_spill(0, spill_folder));
	fill_pattern(large, LARGE, 3 + by_call);
	controller_park();
	in_memory = page_read().copy_bytes;
	epoch = controller_spill(ALL, spill_folder);
	if (by_call)
		read_a_word(&thread, large);
	else
		controller_decide(epoch, false);
	reply = controller_reply(epoch);
	CHECK(reply.status == AFFINODE_REVOKED || reply.status == AFFINODE_OK); /* or it was done already */
	CHECK_EQUAL(page_read().copy_bytes + page_read().disk_bytes, in_memory);
	CHECK_RESUMES();
	if (by_call)
		thread_join(thread);
	CHECK(holds_pattern(large, LARGE, 3 + by_call, 0));
	contents_are_right();
}

/* Calls that come do not end it, ABORT does.  */
static void read_back_ended_early(void)
{
	struct affinode_reply reply;
	pthread_t thread;
	uint64_t on_disk;
	uint32_t epoch;

	test_at("read back, a call and ABORT");
	controller_reply(controller_spill(0, spill_folder));
	fill_pattern(large, LARGE, 9);
	park_to_disk();
	on_disk = page_read().disk_bytes;
	epoch = controller_command(AFFINODE_COMMAND_READ_BACK, ALL);
	controller_decide(epoch, false);
	reply = controller_reply(epoch);
	CHECK(reply.status == AFFINODE_REVOKED || reply.status == AFFINODE_OK); /* or it was done already */
	CHECK_EQUAL(page_read().copy_bytes + page_read().disk_bytes, on_disk);
	CHECK_EQUAL(page_read().copy_bytes, reply.bytes);
	epoch = controller_command(AFFINODE_COMMAND_READ_BACK, ALL);
	read_a_word(&thread, large);
	reply = controller_reply(epoch);
	CHECK(reply.status == AFFINODE_OK || reply.status == AFFINODE_NOTHING);
	CHECK_EQUAL(page_read().disk_bytes, 0);
	CHECK_RESUMES();
	thread_join(thread);
	CHECK(holds_pattern(large, LARGE, 9, 0));
	contents_are_right();
}

/* The controller knows that a call waits, and has others come first.  */
static void although_a_call_waits(void)
{
	pthread_t thread;

	test_at("although a call waits");
	controller_reply(controller_spill(0, spill_folder));
	controller_park();
	read_a_word(&thread, large);
	PAGE_UNTIL(page.want == 1);
	CHECK_EQUAL(spill_all().status, AFFINODE_OK);
	PAGE_UNTIL(page.copy_bytes == 0 && page.state == AFFINODE_STATE_QUEUED);
	CHECK_RESUMES();
	thread_join(thread);
	contents_are_right();
}

/* Freed while it goes on: the free does not wait, and the disk has the space back.  */
static void freed_meanwhile(void)
{
	struct affinode_reply reply;
	uint32_t epoch;

	test_at("freed meanwhile");
	controller_reply(controller_spill(0, spill_folder));
	controller_park();
	epoch = controller_spill(ALL, spill_folder);
	PAGE_UNTIL(page.disk_bytes > 0 || controller_replied(epoch));
	CUDA(MemFree(large));
	reply = controller_reply(epoch);
	CHECK(reply.status == AFFINODE_OK);
	PAGE_UNTIL(page.copy_bytes == 0 && page.disk_bytes < contents_bytes());
	come_back();
}

/* A lot that is to be given back must be empty: what goes to disk first lies together.  */
static void lots_become_empty(void)
{
	CUdeviceptr block;
	uint64_t kept;

	test_at("lots");
	controller_reply(controller_spill(0, spill_folder));
	controller_trim();
	block = cuda_block(LOTS * LOT, 5);
	for (unsigned i = 0; i <= LOTS; i++)
		controller_lend(LOT);
	controller_park_with(LOTS_ALONE);
	PAGE_UNTIL(page.lot_bytes == (LOTS + 1) * LOT);
	kept = page_read().retained_bytes;
	for (unsigned left = LOTS; left > 0; left--) {
		CHECK_EQUAL(controller_reply(controller_spill(LOT / 2, spill_folder)).bytes, LOT / 2);
		PAGE_UNTIL(page.copy_bytes < left * LOT && page.retained_bytes <= kept); /* what no TRIM releases is not shown */
		CHECK_EQUAL(controller_reply(controller_spill(LOT / 2, spill_folder)).bytes, LOT / 2);
		PAGE_UNTIL(page.lot_bytes <= (uint64_t)left * LOT);
	}
	come_back();
	CHECK(holds_pattern(block, LOTS * LOT, 5, 0));
	CUDA(MemFree(block));
}

static void refused(const char *folder, const char *why)
{
	struct affinode_reply reply;

	test_at("%s: %s", folder, why);
	controller_park();
	reply = controller_reply(controller_spill(ALL, folder));
	CHECK_EQUAL(reply.status, AFFINODE_FAILED);
	if (!strstr(reply.text, why))
		test_fail(__FILE__, __LINE__, reply.text, reply.status);
	CHECK_EQUAL(page_read().disk_bytes, 0);
	come_back();
}

/* Only into a folder that belongs to root or to this user, in which others cannot change what is not theirs.  */
static void folders(void)
{
	char link[64], above[64], below[80];

	controller_reply(controller_spill(0, spill_folder));
	snprintf(link, sizeof(link), "%s-link", spill_folder);
	CHECK_EQUAL(symlink(spill_folder, link), 0);
	refused(link, "symbolic link");
	unlink(link);
	refused(link, "cannot be opened");
	refused("/dev/shm", "tmpfs");
	CHECK_EQUAL(chmod(spill_folder, 0777), 0);
	refused(spill_folder, "sticky");
	CHECK_EQUAL(chmod(spill_folder, 01777), 0);
	/* Another user can exchange it: the folder above is that user's, or one that all may change.  */
	snprintf(above, sizeof(above), "%s-above", spill_folder);
	snprintf(below, sizeof(below), "%s/spill", above);
	CHECK_EQUAL(mkdir(above, 0755), 0);
	CHECK_EQUAL(mkdir(below, 0755), 0);
	CHECK_EQUAL(chmod(above, 0777), 0);
	refused(below, "sticky");
	CHECK_EQUAL(chmod(above, 0755), 0);
	if (geteuid() == 0) {
		CHECK_EQUAL(chown(above, 12345, 0), 0);
		refused(below, "another user");
		CHECK_EQUAL(symlink(below, link), 0);
		CHECK_EQUAL(lchown(link, 12345, 0), 0);
		snprintf(below, sizeof(below), "%s/.", link);
		refused(below, "another user");
		snprintf(below, sizeof(below), "%s/spill", above);
		unlink(link);
	}
	CHECK_EQUAL(rmdir(below), 0);
	CHECK_EQUAL(rmdir(above), 0);
	park_to_disk();
	come_back();
}

static void by_another_file(void)
{
	controller_reply(controller_spill(0, spill_folder)); /* an empty file is not used again */
	park_to_disk();
	CHECK(spill_descriptor() >= 0);
	CHECK_EQUAL(spill_names(), 0);
	come_back();
}

/* Where files have names for a moment, and where the system's cache cannot be passed by, nothing is left behind in the folder.  */
static void any_file_system(void)
{
	static const int lacks[] = {O_TMPFILE, O_DIRECT, O_TMPFILE | O_DIRECT};

	for (size_t i = 0; i < sizeof(lacks) / sizeof(*lacks); i++) {
		unsigned before = atomic_load(&refusals);

		test_at("a file system without %x", (unsigned)lacks[i]);
		atomic_store(&refused_flags, lacks[i]);
		by_another_file();
		CHECK(atomic_load(&refusals) > before);
	}
	atomic_store(&refused_flags, 0);
	by_another_file();
}

/* The last thing here: what the disk changed is lost, and each call is told so instead of waiting.  */
static void changed_on_disk(void)
{
	static unsigned char page[4096];
	struct affinode_reply reply;
	pthread_t thread;
	int fd;

	test_step[0] = 0;
	park_to_disk();
	fd = spill_descriptor();
	CHECK_EQUAL(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT), 0);
	CHECK_EQUAL(pwrite(fd, page, sizeof(page), (off_t)CHUNK / 2), sizeof(page));
	CHECK_EQUAL(fsync(fd), 0);
	if (test_seed % 2) /* it is lost all the same */
		CHECK_EQUAL(read_back(ALL).status, AFFINODE_OK);
	thread_start(&thread, call, (void *)CUDA_ERROR_ECC_UNCORRECTABLE);
	PAGE_UNTIL(page.want == 1);
	reply = controller_reply(controller_command(AFFINODE_COMMAND_RESUME, 0));
	CHECK_EQUAL(reply.status, AFFINODE_FAILED);
	CHECK(strstr(reply.text, "lost") != NULL);
	thread_join(thread);
	PAGE_UNTIL(page.state == AFFINODE_STATE_PARKED);
	call((void *)CUDA_ERROR_ECC_UNCORRECTABLE);
}

/* A process that began on a full GPU has no digests, without which nothing goes to disk, until it allocates when there is room.  */
static void begun_on_full_gpu(void)
{
	static const char *const calls[] = {"cuMemAlloc", "cuModuleLoadData", "cuModuleGetFunction", "cuMemHostAlloc",
					    "cuStreamCreate", "cuLaunchKernel"};
	int64_t registered;
	size_t free_bytes;

	board_arm("cuModuleLoadData:OUT_OF_MEMORY:1+");
	contents_make();
	CHECK(board_disarm() > 0);
	controller_park();
	CHECK_EQUAL(spill_all().status, AFFINODE_NOTHING);
	come_back();
	registered = board_registered_bytes();
	free_bytes = cuda_free_bytes();
	for (size_t i = 0; i <= sizeof(calls) / sizeof(*calls); i++) {
		CHECK_EQUAL(board_registered_bytes(), registered); /* what was obtained in vain is given back */
		CHECK_EQUAL(cuda_free_bytes(), free_bytes);
		if (i < sizeof(calls) / sizeof(*calls))
			board_arm("%s:OUT_OF_MEMORY:1", calls[i]);
		CUDA(MemAlloc(&large, MiB(4)));
		CUDA(MemFree(large));
		CHECK_EQUAL(board_disarm(), i < sizeof(calls) / sizeof(*calls));
	}
}

int main(int argc, char **argv)
{
	test_begin(argc, argv, 100);
	spilling_begin();
	board_make();
	cuda_start();
	controller_accept();
	begun_on_full_gpu();
	nothing_stays_in_memory();
	gives_back_the_ring();
	unchanged_is_not_written_again();
	resident_forgets_what_is_kept();
	part();
	reads_back();
	full();
	unreadable();
	closed();
	freed();
	CUDA(MemAlloc(&large, LARGE));
	ended_early(true);
	ended_early(false);
	read_back_ended_early();
	although_a_call_waits();
	freed_meanwhile();
	lots_become_empty();
	folders();
	any_file_system();
	changed_on_disk();
	return 0;
}
