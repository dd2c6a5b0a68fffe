#include "ipc_process.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "board.h"
#include "ipc/ipc.h"

static CUdeviceptr opened, again;

static void disturb(CUipcMemHandle *handle, uint64_t *random)
{
	unsigned flips = 1 + (unsigned)(test_random(random) % 8);

	while (flips-- > 0) /* behind the magic, which makes it the shim's to judge */
		handle->reserved[8 + test_random(random) % 56] ^= (char)(1u << (test_random(random) % 8));
}

/* How many of many handles that are nearly right could be opened.  */
static long fuzz(const CUipcMemHandle *right)
{
	uint64_t random = test_seed;
	long wrongly = 0;

	for (int i = 0; i < FUZZED; i++) {
		CUipcMemHandle handle = *right;
		CUdeviceptr at;

		disturb(&handle, &random);
		if (memcmp(&handle, right, sizeof(handle)) == 0)
			continue; /* what was flipped was flipped back */
		wrongly += cu.IpcOpenMemHandle(&at, handle, 1) == CUDA_SUCCESS;
	}
	return wrongly;
}

/* Datagrams of any size, with descriptors, at the exporter's socket.  */
static long spam(const CUipcMemHandle *handle)
{
	struct ipc_handle ours;
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	int n = sprintf(un.sun_path + 1, "affinode-ipc-"), fd = socket(AF_UNIX, SOCK_DGRAM, 0);
	uint64_t random = test_seed;
	char bytes[4096] = {0};
	long sent = 0;

	memcpy(&ours, handle, sizeof(ours));
	for (int i = 0; i < 16; i++)
		n += sprintf(un.sun_path + 1 + n, "%02x", ours.process[i]);
	for (int i = 0; i < FUZZED; i++) {
		union {
			struct cmsghdr header;
			char space[CMSG_SPACE(3 * sizeof(int))];
		} control;
		struct iovec iov = {bytes, test_random(&random) % sizeof(bytes)};
		struct msghdr message = {.msg_name = &un, .msg_iov = &iov, .msg_iovlen = 1};

		message.msg_namelen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
		if (i % 2) {
			int fds[3] = {0, fd, fd};

			memset(&control, 0, sizeof(control));
			control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(fds)), .cmsg_level = SOL_SOCKET,
							  .cmsg_type = SCM_RIGHTS};
			memcpy(CMSG_DATA(&control.header), fds, sizeof(fds));
			message.msg_control = &control;
			message.msg_controllen = sizeof(control);
		}
		if (i % 3 == 0) {
			iov.iov_len = 32; /* a request's size, and its first word */
			memcpy(bytes, handle, 8);
			bytes[8] = (char)(test_random(&random) % 3);
		}
		/* Nought for a datagram of no bytes; descriptors are refused by a kernel that knows how.  */
		if (sendmsg(fd, &message, 0) >= 0 || (message.msg_control && errno == EPERM))
			sent++;
		else
			perror("a datagram was not sent");
	}
	close(fd);
	return sent;
}

#define THREADS 12
#define ROUNDS 15

static CUipcMemHandle crowded;

static void *open_and_close(void *unused)
{
	(void)unused;
	CUDA(CtxSetCurrent(cuda_context));
	for (int i = 0; i < ROUNDS; i++) {
		CUdeviceptr at, size;

		CUDA(IpcOpenMemHandle(&at, crowded, 1));
		CUDA(PointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at));
		CHECK_EQUAL(size, BYTES);
		CUDA(IpcCloseMemHandle(at));
	}
	return NULL;
}

/* More threads than a socket's queue holds ask at once, and each closes what it opened.  */
static void crowd(const CUipcMemHandle *handle)
{
	pthread_t threads[THREADS];

	crowded = *handle;
	for (int i = 0; i < THREADS; i++)
		thread_start(&threads[i], open_and_close, NULL);
	for (int i = 0; i < THREADS; i++)
		thread_join(threads[i]);
}

/* Whatever step of opening fails in the driver, nothing is left over and the next time it works; how many steps.  */
static long fail_each(const CUipcMemHandle *handle)
{
	static const char *const steps[] = {"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap",
					    "cuMemSetAccess"};
	int descriptors = open_descriptors();
	long failed = 0;

	for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		CUdeviceptr at;
		CUresult result;

		board_arm("%s:OUT_OF_MEMORY:1", steps[i]);
		result = cu.IpcOpenMemHandle(&at, *handle, 1);
		failed += board_disarm();
		CHECK_EQUAL(result, CUDA_ERROR_OUT_OF_MEMORY);
		CUDA(IpcOpenMemHandle(&at, *handle, 1));
		CHECK(holds_pattern(at, BYTES, 11, 0));
		CUDA(IpcCloseMemHandle(at));
		CHECK(cu.IpcCloseMemHandle(at) != CUDA_SUCCESS);
		UNTIL(open_descriptors() <= descriptors);
	}
	return failed;
}

static void make_and_export(struct told *told)
{
	CUdeviceptr at;

	at = cuda_block(BYTES, 77);
	told->number = cu.IpcGetMemHandle(&told->handle, at);
}

static long attribute(int which)
{
	uint64_t value = 0;

	CUDA(PointerGetAttribute(&value, which, opened + 4096));
	return (long)(which == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ? value - opened : value);
}

void ipc_child(void)
{
	struct ask ask;
	CUdeviceptr warm;

	if (!test_role)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* also while it is stopped */
	if (strcmp(test_role, "faulty") == 0)
		board_make();
	cuda_start();
	CUDA(MemAlloc(&warm, MiB(2))); /* makes the context ready */
	while (read(TALK_FD, &ask, sizeof(ask)) == sizeof(ask)) {
		struct told told = {0};

		switch (ask.what) {
		case OPEN:
			told.number = cu.IpcOpenMemHandle(&opened, ask.handle, 1);
			break;
		case OPEN_AGAIN:
			told.number = cu.IpcOpenMemHandle(&again, ask.handle, 1);
			CHECK(told.number != CUDA_SUCCESS || again == opened);
			break;
		case CLOSE:
			told.number = cu.IpcCloseMemHandle(opened);
			break;
		case FREE_IT:
			told.number = cu.MemFree(opened);
			break;
		case ADD:
			CHECK_EQUAL(launch_add(NULL, opened, BYTES, ask.added), CUDA_SUCCESS);
			told.number = cu.CtxSynchronize();
			break;
		case VERIFY:
			told.number = holds_pattern(opened, BYTES, ask.seed, ask.added);
			break;
		case ATTRIBUTE:
			told.number = attribute(ask.attribute);
			break;
		case EXPORT_IT:
			told.number = cu.IpcGetMemHandle(&told.handle, opened);
			break;
		case FUZZ:
			told.number = fuzz(&ask.handle);
			break;
		case SPAM:
			told.number = spam(&ask.handle);
			break;
		case CROWD:
			crowd(&ask.handle);
			break;
		case FAULTS:
			told.number = fail_each(&ask.handle);
			break;
		case MAKE_AND_EXPORT:
			make_and_export(&told);
			break;
		case LEAVE:
			exit(0);
		}
		CHECK_EQUAL(write(TALK_FD, &told, sizeof(told)), sizeof(told));
	}
	exit(0);
}

struct process start_child(const char *role)
{
	char ours[128], nobody[160];
	struct process process;

	snprintf(ours, sizeof(ours), "%s", getenv("AFFINODE_SOCKET"));
	snprintf(nobody, sizeof(nobody), "%s-nobody/node.sock", ours); /* the controller here is the parent's alone */
	setenv("AFFINODE_SOCKET", nobody, 1);
	process.pid = child_start_talking(role, &process.talk);
	setenv("AFFINODE_SOCKET", ours, 1);
	return process;
}

struct told ask(const struct process *process, struct ask question)
{
	struct told told;

	CHECK_EQUAL(write(process->talk, &question, sizeof(question)), sizeof(question));
	CHECK_EQUAL(read(process->talk, &told, sizeof(told)), sizeof(told));
	return told;
}
void leave(const struct process *process)
{
	struct ask question = {.what = LEAVE};

	CHECK_EQUAL(write(process->talk, &question, sizeof(question)), sizeof(question));
	CHECK_EQUAL(child_wait(process->pid), 0);
	close(process->talk);
}

/* Files of the kernel's own are what a thread of the shim looks at for a moment.  */
bool stays_open(int fd)
{
	char link[32], path[64] = "";

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	return readlink(link, path, sizeof(path) - 1) >= 0 && strncmp(path, "/proc/", 6) && strncmp(path, "/sys/", 5);
}

int open_descriptors(void)
{
	int n = 0;

	for (int fd = 0; fd < 1000; fd++)
		n += stays_open(fd);
	return n;
}

CUipcMemHandle export_of(CUdeviceptr at)
{
	CUipcMemHandle handle;

	memset(&handle, 0, sizeof(handle));
	CUDA(IpcGetMemHandle(&handle, at));
	return handle;
}
