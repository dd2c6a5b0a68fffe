/* Descriptors, locks and host memory that are not to be had while context depth wants them: the process stays where it is,
 * says why, loses nothing, and goes on when they are there again; and no process waits for a lock that does not exist.  */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "board.h"
#include "depth.h"
#include "grown_up.h"

#define BYTES MiB(8)

static CUdeviceptr block;
static _Atomic int flock_errors, flock_error, kinds; /* so many of the next of those kinds fail so */
static _Atomic bool removes_locked, memory_is_short;
static _Atomic int no_descriptor; /* EMFILE or ENFILE: for lock files */

/* For the shim, too.  */
int flock(int fd, int operation)
{
	long failed;

	if (operation & atomic_load(&kinds) && atomic_fetch_sub(&flock_errors, 1) > 0) {
		errno = atomic_load(&flock_error);
		return -1;
	}
	failed = syscall(SYS_flock, fd, operation);
	if (!failed && operation & LOCK_EX && atomic_exchange(&removes_locked, false))
		gpu_lock_replace();
	return (int)failed;
}

/* The machine's figures while the mover looks whether the context may leave too; and descriptors for locks.  */
__attribute__((no_sanitize("thread", "address"))) int open(const char *path, int flags, ...)
{
	va_list list;
	int mode;

	va_start(list, flags);
	mode = flags & O_CREAT ? va_arg(list, int) : 0;
	va_end(list);
	if (atomic_load(&no_descriptor) && strstr(path, ".lock")) {
		errno = atomic_load(&no_descriptor);
		return -1;
	}
	if (atomic_load(&memory_is_short) && strcmp(path, "/proc/meminfo") == 0 &&
	    page_read().state == AFFINODE_STATE_PARKED)
		path = getenv("TEST_MEMINFO");
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static void fail_flock(int of, int error, int times)
{
	atomic_store(&kinds, of);
	atomic_store(&flock_error, error);
	atomic_store(&flock_errors, times);
}

static void comes_back(void)
{
	CHECK_RESUMES();
	CHECK(holds_pattern(block, BYTES, 5, 0));
}

static void allocate(void)
{
	CUdeviceptr at;

	CUDA(CtxSetCurrent(cuda_context));
	CUDA(MemAlloc(&at, MiB(4)));
	CUDA(MemFree(at));
}

static void descriptors(int error)
{
	struct call call;
	int fd;

	test_at("no descriptors: %s", strerror(error));
	atomic_store(&no_descriptor, error);
	park_no_deeper("no lock can be had");
	comes_back();
	atomic_store(&no_descriptor, 0);
	park_deep_surely();
	atomic_store(&no_descriptor, error);
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_NO_GPU_ROOM);
	CHECK_EQUAL(page_read().depth, AFFINODE_DEPTH_CONTEXT);
	atomic_store(&no_descriptor, 0);
	comes_back();
	gpu_lock_replace(); /* or it would have it open */
	fd = gpu_lock_take(NULL);
	atomic_store(&no_descriptor, error);
	call_begin(&call, allocate); /* on its way to the GPU's lock, which it does not get */
	CHECK(call_waits(&call));
	atomic_store(&no_descriptor, 0);
	CHECK(call_waits(&call));
	gpu_lock_leave(fd);
	call_end(&call);
}

static void locks(void)
{
	test_at("no locks on this file system");
	fail_flock(LOCK_EX, ENOLCK, 1000);
	park_no_deeper("no lock can be had");
	comes_back();
	fail_flock(LOCK_EX, 0, 0);
	park_deep_surely();
	fail_flock(LOCK_EX, ENOLCK, 1000);
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_NO_GPU_ROOM);
	CHECK_EQUAL(page_read().depth, AFFINODE_DEPTH_CONTEXT);
	fail_flock(LOCK_EX, 0, 0);
	comes_back();
	fail_flock(LOCK_SH, ENOLCK, 1); /* is as none, and no process waits */
	allocate();
	CHECK(atomic_load(&flock_errors) < 1);
	fail_flock(LOCK_SH, EINTR, 3); /* is tried again */
	allocate();
	CHECK(atomic_load(&flock_errors) < 0);
}

/* The file is cleaned up between the shim's open and its lock, which no other process would have heeded.  */
static void a_lock_is_removed_as_it_is_taken(void)
{
	uint32_t resume;

	test_at("a lock removed as it is taken");
	park_deep_surely();
	board_arm("cuCheckpointProcessRestore:HOLD:1");
	atomic_store(&removes_locked, true);
	resume = controller_command(AFFINODE_COMMAND_RESUME, 0);
	UNTIL(board_holds());
	CHECK(!atomic_load(&removes_locked));
	CHECK(gpu_lock_is_taken(NULL));
	board_disarm();
	CHECK_EQUAL(controller_reply(resume).status, AFFINODE_OK);
	CHECK(holds_pattern(block, BYTES, 5, 0));
}

static void host_memory(void)
{
	char path[] = "/tmp/affinode-meminfo-XXXXXX";
	int fd = mkstemp(path);

	test_at("no host memory for the context");
	CHECK(fd >= 0);
	CHECK(dprintf(fd, "MemTotal: 8000000 kB\nMemAvailable: 200000 kB\n") > 0);
	close(fd);
	setenv("TEST_MEMINFO", path, 1);
	atomic_store(&memory_is_short, true);
	park_no_deeper("host memory is short");
	atomic_store(&memory_is_short, false);
	comes_back();
	park_deep_surely();
	comes_back();
	unlink(path);
}

/* None at all, as others see it. The simulated driver would not know its processes any more.  */
static void take_all_descriptors(void)
{
	struct rlimit limit;

	CHECK_EQUAL(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = 3; /* poll(2) takes no more than that */
	CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &limit), 0);
	CHECK(open("/proc/self/stat", O_RDONLY | O_CLOEXEC) < 0 && errno == EMFILE);
}

/* A process without context depth, in a place where no process has it.  */
static void without_locks(void)
{
	CUdeviceptr at;

	cuda_start();
	CUDA(MemAlloc(&at, BYTES));
	CUDA(MemFree(at));
	behind_s = -60; /* what it has seen is long ago */
	take_all_descriptors();
	CUDA(MemAlloc(&at, BYTES));
	CUDA(MemFree(at));
}

int main(int argc, char **argv)
{
	char socket[128];

	test_begin(argc, argv, 30);
	if (test_role) {
		without_locks();
		return 0;
	}
	snprintf(socket, sizeof(socket), "%s", getenv("AFFINODE_SOCKET"));
	setenv("AFFINODE_SOCKET", "/tmp/affinode-test-nowhere/node.sock", 1);
	CHECK_EQUAL(child_wait(child_start("without locks")), 0);
	setenv("AFFINODE_SOCKET", socket, 1);
	depth_ask();
	board_make();
	cuda_start_grown_up();
	controller_accept();
	block = cuda_block(BYTES, 5);
	descriptors(EMFILE);
	descriptors(ENFILE);
	locks();
	a_lock_is_removed_as_it_is_taken();
	host_memory();
	return 0;
}
