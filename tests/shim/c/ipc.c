/* Legacy IPC of backed memory between two processes: it works as the driver's own does, what is shared stays on the GPU
 * while the rest is parked, and nobody gets what was not given to them.  */
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "harness.h"
#include "ipc.h"

#define BYTES MiB(6)
#define OTHER_BYTES MiB(4)
#define INVALID_CONTEXT 201
#define FUZZED 400

/* What the parent asks of a child, over two descriptors; each is answered with one number.  */
enum what { OPEN, OPEN_AGAIN, CLOSE, FREE_IT, ADD, VERIFY, ATTRIBUTE, EXPORT_IT, FUZZ, SPAM, CROWD, FAULTS,
	    MAKE_AND_EXPORT, LEAVE };
struct ask {
	enum what what;
	CUipcMemHandle handle;
	uint32_t seed, added;
	int attribute;
};
struct told {
	long number;
	CUipcMemHandle handle;
};

/* Where a child finds them.  */
#define DOWN 100
#define UP 101

static CUdeviceptr opened, again;

/* ---- the child ---- */

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
		sent += sendmsg(fd, &message, 0) > 0;
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

static int open_descriptors(void);

/* Whatever step of opening fails in the driver, nothing is left over and the next time it works; how many steps.  */
static long fail_each(const CUipcMemHandle *handle)
{
	static const char *const steps[] = {"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap",
					    "cuMemSetAccess"};
	unsigned (*failing_find)(const char *name);
	void (*failing_arm)(unsigned i, unsigned nth, int with, int for_good);
	unsigned (*failing_disarm)(void);
	int descriptors = open_descriptors();
	long failed = 0;

	*(void **)&failing_find = cuda_in_front("failing_find");
	*(void **)&failing_arm = cuda_in_front("failing_arm");
	*(void **)&failing_disarm = cuda_in_front("failing_disarm");
	for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		CUdeviceptr at;
		CUresult result;

		failing_arm(failing_find(steps[i]), 1, CUDA_ERROR_OUT_OF_MEMORY, 0);
		result = cu.IpcOpenMemHandle(&at, *handle, 1);
		failed += failing_disarm();
		CHECK_EQUAL(result, CUDA_ERROR_OUT_OF_MEMORY);
		CUDA(IpcOpenMemHandle(&at, *handle, 1));
		CHECK(holds_pattern(at, BYTES, 11, 0));
		CUDA(IpcCloseMemHandle(at));
		CHECK(cu.IpcCloseMemHandle(at) != CUDA_SUCCESS);
		CHECK_EQUAL(open_descriptors(), descriptors);
	}
	return failed;
}

static void make_and_export(struct told *told)
{
	CUdeviceptr at;

	CUDA(MemAlloc(&at, BYTES));
	CHECK_EQUAL(launch_pattern(NULL, at, BYTES, 77), CUDA_SUCCESS);
	CUDA(CtxSynchronize());
	told->number = cu.IpcGetMemHandle(&told->handle, at);
}

static long attribute(int which)
{
	uint64_t value = 0;

	CUDA(PointerGetAttribute(&value, which, opened + 4096));
	return (long)(which == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ? value - opened : value);
}

static void child(void)
{
	struct ask ask;

	CUdeviceptr warm;

	prctl(PR_SET_PDEATHSIG, SIGKILL); /* also while it is stopped */
	if (strcmp(test_role, "faulty") == 0)
		cuda_in_front("failing_find");
	cuda_start();
	CUDA(MemAlloc(&warm, MiB(2))); /* makes the context ready */
	while (read(DOWN, &ask, sizeof(ask)) == sizeof(ask)) {
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
			return;
		}
		CHECK_EQUAL(write(UP, &told, sizeof(told)), sizeof(told));
	}
}

/* ---- the parent ---- */

struct process {
	pid_t pid;
	int to, from;
};

static struct process start_child(const char *role)
{
	char ours[128], nobody[160];
	struct process process;
	int down[2], up[2];

	CHECK_EQUAL(pipe2(down, O_CLOEXEC), 0);
	CHECK_EQUAL(pipe2(up, O_CLOEXEC), 0);
	CHECK_EQUAL(dup2(down[0], DOWN), DOWN);
	CHECK_EQUAL(dup2(up[1], UP), UP);
	snprintf(ours, sizeof(ours), "%s", getenv("AFFINODE_SOCKET"));
	snprintf(nobody, sizeof(nobody), "%s-nobody/node.sock", ours); /* the controller here is the parent's alone */
	setenv("AFFINODE_SOCKET", nobody, 1);
	process.pid = child_start(role);
	setenv("AFFINODE_SOCKET", ours, 1);
	process.to = down[1];
	process.from = up[0];
	close(down[0]);
	close(up[1]);
	close(DOWN);
	close(UP);
	return process;
}

static struct told ask(const struct process *process, struct ask question)
{
	struct told told;

	CHECK_EQUAL(write(process->to, &question, sizeof(question)), sizeof(question));
	CHECK_EQUAL(read(process->from, &told, sizeof(told)), sizeof(told));
	return told;
}
#define ASK(process, asked, ...) ask(process, (struct ask){.what = asked, ##__VA_ARGS__}).number

static void leave(const struct process *process)
{
	struct ask question = {.what = LEAVE};

	CHECK_EQUAL(write(process->to, &question, sizeof(question)), sizeof(question));
	CHECK_EQUAL(child_wait(process->pid), 0);
	close(process->to);
	close(process->from);
}

static int open_descriptors(void)
{
	int n = 0;

	for (int fd = 0; fd < 1000; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static CUdeviceptr block(size_t bytes, uint32_t seed)
{
	CUdeviceptr at;

	CUDA(MemAlloc(&at, bytes));
	CHECK_EQUAL(launch_pattern(NULL, at, bytes, seed), CUDA_SUCCESS);
	CUDA(CtxSynchronize());
	return at;
}

static CUipcMemHandle export_of(CUdeviceptr at)
{
	CUipcMemHandle handle;

	memset(&handle, 0, sizeof(handle));
	CUDA(IpcGetMemHandle(&handle, at));
	return handle;
}

static void shares(const struct process *importer)
{
	CUdeviceptr shared = block(BYTES, 1), other = block(OTHER_BYTES, 2), at;
	CUipcMemHandle handle = export_of(shared), inner = export_of(shared + BYTES / 2);
	unsigned char capable = 0;

	CHECK_EQUAL(memcmp(&handle, &inner, sizeof(handle)), 0); /* one a block: importers keep them by their bytes */
	CUDA(PointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, shared));
	CHECK_EQUAL(capable, 1);
	CHECK_EQUAL(cu.IpcOpenMemHandle(&at, handle, 1), INVALID_CONTEXT); /* the maker has it already */
	CHECK_EQUAL(cu.IpcOpenMemHandle(&at, handle, 0), CUDA_ERROR_INVALID_VALUE);

	CHECK_EQUAL(ASK(importer, OPEN, .handle = handle), CUDA_SUCCESS);
	CHECK_EQUAL(ASK(importer, VERIFY, .seed = 1), true);
	CHECK_EQUAL(ASK(importer, ATTRIBUTE, .attribute = CU_POINTER_ATTRIBUTE_RANGE_START_ADDR), 0);
	CHECK_EQUAL(ASK(importer, ATTRIBUTE, .attribute = CU_POINTER_ATTRIBUTE_RANGE_SIZE), BYTES);
	CHECK_EQUAL(ASK(importer, ATTRIBUTE, .attribute = CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE), 0);
	CHECK(ASK(importer, FREE_IT) != CUDA_SUCCESS);
	CHECK(ASK(importer, EXPORT_IT) != CUDA_SUCCESS);
	CHECK_EQUAL(ASK(importer, OPEN_AGAIN, .handle = handle), CUDA_SUCCESS);
	CHECK_EQUAL(ASK(importer, CLOSE), CUDA_SUCCESS);
	CHECK_EQUAL(ASK(importer, ADD, .added = 5), CUDA_SUCCESS);
	CHECK(holds_pattern(shared, BYTES, 1, 5));

	/* Parked, but for what another process can reach.  */
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_PARK), AFFINODE_OK);
	CHECK_EQUAL(page_read().gpus[0].parked_bytes, OTHER_BYTES);
	CHECK_EQUAL(page_read().gpus[0].fixed_bytes[AFFINODE_FIXED_SHARED], BYTES);
	CHECK_EQUAL(ASK(importer, ADD, .added = 6), CUDA_SUCCESS);
	CHECK_EQUAL(ASK(importer, VERIFY, .seed = 1, .added = 11), true);
	CHECK_EQUAL(ASK(importer, CLOSE), CUDA_SUCCESS);
	CHECK(ASK(importer, CLOSE) != CUDA_SUCCESS);
	CHECK_EQUAL(ASK(importer, OPEN, .handle = handle), CUDA_SUCCESS); /* answered by a parked process too */
	CHECK_EQUAL(ASK(importer, VERIFY, .seed = 1, .added = 11), true);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_OK);
	CHECK(holds_pattern(shared, BYTES, 1, 11));
	CHECK(holds_pattern(other, OTHER_BYTES, 2, 0));
	CHECK_EQUAL(ASK(importer, CLOSE), CUDA_SUCCESS);

	/* Freed: the handle is worth nothing, also when the address is used again.  */
	CUDA(MemFree(shared));
	CHECK_EQUAL(ASK(importer, OPEN, .handle = handle), CUDA_ERROR_INVALID_VALUE);
	shared = block(BYTES, 3);
	CHECK_EQUAL(ASK(importer, OPEN, .handle = handle), CUDA_ERROR_INVALID_VALUE);
	inner = export_of(shared);
	CHECK(memcmp(&handle, &inner, sizeof(handle)) != 0);
	CUDA(MemFree(shared));
	CUDA(MemFree(other));
}

/* No descriptor of a freed block stays behind, nor what strangers send.  */
static void withstands(const struct process *importer)
{
	CUdeviceptr shared = block(BYTES, 4);
	CUipcMemHandle handle = export_of(shared);
	int descriptors = open_descriptors();

	CHECK_EQUAL(ASK(importer, FUZZ, .handle = handle), 0);
	CHECK_EQUAL(ASK(importer, SPAM, .handle = handle), FUZZED);
	CHECK_EQUAL(ASK(importer, OPEN, .handle = handle), CUDA_SUCCESS);
	CHECK_EQUAL(ASK(importer, VERIFY, .seed = 4), true);
	CHECK_EQUAL(ASK(importer, CLOSE), CUDA_SUCCESS);
	CHECK_EQUAL(open_descriptors(), descriptors);
	for (int i = 0; i < 20; i++) {
		CUdeviceptr at = block(MiB(2), 5);

		export_of(at);
		CUDA(MemFree(at));
	}
	CHECK_EQUAL(open_descriptors(), descriptors);
	CUDA(MemFree(shared));
}

static void opens_in_a_crowd_and_in_need(const struct process *importer)
{
	CUdeviceptr shared = block(BYTES, 11);
	CUipcMemHandle handle = export_of(shared);
	struct process faulty = start_child("faulty");

	CHECK_EQUAL(ASK(importer, CROWD, .handle = handle), 0);
	CHECK(ASK(&faulty, FAULTS, .handle = handle) == 4);
	leave(&faulty);
	CUDA(MemFree(shared));
}

static CUdeviceptr to_be_exported;
static _Atomic int export_result;

static void *export_while_parked(void *handle)
{
	CUDA(CtxSetCurrent(cuda_context));
	atomic_store(&export_result, cu.IpcGetMemHandle(handle, to_be_exported));
	return NULL;
}

/* Asking for a handle of parked memory brings it back first.  */
static void exports_what_was_parked(const struct process *importer)
{
	CUipcMemHandle handle;
	pthread_t thread;

	to_be_exported = block(BYTES, 6);
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_PARK), AFFINODE_OK);
	thread_start(&thread, export_while_parked, &handle);
	PAGE_UNTIL(page.want == 1);
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_OK);
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&export_result), CUDA_SUCCESS);
	CHECK_EQUAL(ASK(importer, OPEN, .handle = handle), CUDA_SUCCESS);
	CHECK_EQUAL(ASK(importer, VERIFY, .seed = 6), true);
	CHECK_EQUAL(ASK(importer, CLOSE), CUDA_SUCCESS);
	CUDA(MemFree(to_be_exported));
}

/* The other way round: we import, are parked, and the exporter ends; a stopped one is not waited for without end.  */
static void imports(void)
{
	struct process exporter = start_child("child");
	struct told told = ask(&exporter, (struct ask){.what = MAKE_AND_EXPORT});
	CUdeviceptr at, other = block(OTHER_BYTES, 8), nothing;
	CUipcMemHandle second;
	int status;

	CHECK_EQUAL(told.number, CUDA_SUCCESS);
	second = ask(&exporter, (struct ask){.what = MAKE_AND_EXPORT}).handle;
	CUDA(IpcOpenMemHandle(&at, told.handle, 1));
	CHECK(holds_pattern(at, BYTES, 77, 0));
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_PARK), AFFINODE_OK);
	CHECK_EQUAL(page_read().gpus[0].parked_bytes, OTHER_BYTES);
	CHECK_EQUAL(page_read().gpus[0].fixed_bytes[AFFINODE_FIXED_SHARED], BYTES);
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_OK);
	CHECK(holds_pattern(at, BYTES, 77, 0));
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_PARK), AFFINODE_OK);
	CUDA(IpcCloseMemHandle(at)); /* at once, also while parked */
	CHECK_EQUAL(page_read().want, 0);
	PAGE_UNTIL(page.gpus[0].fixed_bytes[AFFINODE_FIXED_SHARED] == 0);
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_OK);
	CHECK(cu.IpcCloseMemHandle(at) != CUDA_SUCCESS);

	CHECK_EQUAL(kill(exporter.pid, SIGSTOP), 0);
	CHECK_EQUAL(waitpid(exporter.pid, &status, WUNTRACED), exporter.pid); /* not before all its threads stand */
	CHECK(WIFSTOPPED(status));
	CHECK(cu.IpcOpenMemHandle(&nothing, second, 1) != CUDA_SUCCESS);
	CHECK_EQUAL(kill(exporter.pid, SIGCONT), 0);
	CUDA(IpcOpenMemHandle(&at, second, 1));
	leave(&exporter);
	CHECK(holds_pattern(at, BYTES, 77, 0)); /* ours until we close it */
	CHECK_EQUAL(cu.IpcOpenMemHandle(&nothing, told.handle, 1), CUDA_ERROR_INVALID_VALUE);
	CUDA(IpcCloseMemHandle(at));
	CUDA(MemFree(other));
}

#define MOST_DESCRIPTORS 1000

/* A forked child keeps neither the socket nor the memory.  */
static void children_keep_nothing(void)
{
	static bool open_before[MOST_DESCRIPTORS];
	int before = open_descriptors(), made = 0, kept = 0;
	CUdeviceptr shared;

	for (int fd = 0; fd < MOST_DESCRIPTORS; fd++)
		open_before[fd] = fcntl(fd, F_GETFD) >= 0;
	shared = block(BYTES, 9);
	export_of(shared);
	made = open_descriptors() - before;
	CHECK(made >= 1);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		for (int fd = 0; fd < MOST_DESCRIPTORS; fd++)
			kept += !open_before[fd] && fcntl(fd, F_GETFD) >= 0;
		_exit(kept == made - 1 ? 0 : 1); /* the simulated driver keeps its own */
	}
	CHECK_EQUAL(child_wait(pid), 0);
	CUDA(MemFree(shared));
	CHECK_EQUAL(open_descriptors(), before);
}

int main(int argc, char **argv)
{
	struct process importer;

	test_begin(argc, argv, 90);
	if (test_role) {
		child();
		return 0;
	}
	importer = start_child("child");
	cuda_start();
	controller_accept();
	shares(&importer);
	withstands(&importer);
	opens_in_a_crowd_and_in_need(&importer);
	exports_what_was_parked(&importer);
	imports();
	children_keep_nothing();
	leave(&importer);
	return 0;
}
