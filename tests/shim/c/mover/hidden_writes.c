/* Writes to GPU memory that no wrapper sees: a library with a private table of the driver's functions, a network card. A
 * park that one of them meets comes to nothing; what was written is there, and nothing else is missing.  */
#include "board.h"
#include "harness.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define CHUNKS 4
#define BYTES MiB(2 * CHUNKS)

static CUresult (*set_hidden)(CUdeviceptr, unsigned int, size_t);
static CUresult (*set_later_hidden)(CUdeviceptr, unsigned int, size_t, CUstream);
static CUresult (*call_hidden)(CUstream, void (*)(void *), void *);
static CUresult (*create_hidden)(CUstream *, unsigned int);
static CUdeviceptr block;
static uint32_t expected[CHUNKS]; /* each chunk is full of one word */

static void contents_are_as_written(void)
{
	static uint32_t words[BYTES / 4];

	CUDA(MemcpyDtoH(words, block, BYTES));
	for (size_t i = 0; i < BYTES / 4; i++)
		if (words[i] != expected[i / (MiB(2) / 4)])
			test_fail(__FILE__, __LINE__, "a write was lost in chunk", (long)(i / (MiB(2) / 4)));
}

static void write_hidden(unsigned chunk)
{
	expected[chunk] += CHUNKS;
	CHECK_EQUAL(set_hidden(block + chunk * MiB(2), expected[chunk], MiB(2) / 4), CUDA_SUCCESS);
}

/* The write comes while the park is at the nth call of that name; the reply's status. `met`: it makes such a call.  */
static int park_with_write_at(const char *name, unsigned nth, uint64_t how, bool *met)
{
	uint32_t epoch;

	test_at("a write at %s, the %u.; flags %#llx", name, nth, (unsigned long long)how);
	CUDA(CtxSynchronize());
	board_arm("%s:HOLD:%u", name, nth);
	epoch = controller_command(AFFINODE_COMMAND_PARK, how);
	*met = board_holds_in(epoch);
	if (*met)
		write_hidden(1);
	board_disarm();
	if (how & AFFINODE_MOVE_PREPARE && controller_prepared(epoch))
		controller_decide(epoch, true);
	return controller_reply(epoch).status;
}

static void resumes(void)
{
	PAGE_UNTIL(page.state != AFFINODE_STATE_PARKING); /* a park that was answered for being late goes on to its end */
	if (page_read().state != AFFINODE_STATE_RESIDENT)
		CHECK_RESUMES();
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_RESIDENT);
	contents_are_as_written();
}

/* Between what is read first and what is released: while it is copied, or when the gate is closed again. Whether the next
 * park had one chunk less to copy.  */
static bool is_not_lost_once(const char *name, unsigned nth, uint64_t how)
{
	bool met, kept;
	int status;

	for (unsigned i = 0; i < 2; i++) /* something to be copied */
		CUDA(MemsetD32(block + i * MiB(2), expected[i] += CHUNKS, MiB(2) / 4));
	status = park_with_write_at(name, nth, how, &met);
	CHECK(status == AFFINODE_BUSY || (met && status == AFFINODE_OK));
	resumes();
	controller_park();
	kept = met && status == AFFINODE_BUSY && page_read().last_park_copied_bytes == MiB(2);
	resumes();
	return kept;
}

/* The park comes to nothing, and what did not change need not be copied again: unless a call on a loaded machine took so
 * long that the park was given up before it had copied anything, or had begun again after the write.  */
static void is_not_lost(const char *name, unsigned nth, uint64_t how)
{
	unsigned tries = 100;

	while (!is_not_lost_once(name, nth, how))
		CHECK(--tries);
}

/* There is nothing to be copied: wherever the write comes, it is there.  */
static void is_not_lost_where_nothing_is_copied(const char *name)
{
	bool met = true;

	for (unsigned nth = 1; met; nth++) {
		int status = park_with_write_at(name, nth, 0, &met);

		CHECK(status == AFFINODE_OK || status == AFFINODE_BUSY);
		resumes();
	}
}

static void wait_until_allowed(void *allowed)
{
	while (!atomic_load((_Atomic bool *)allowed))
		usleep(1000);
}

/* It is submitted while the park copies, and is done only when the park has ended.  */
static void is_waited_for_once_submitted(uint64_t how)
{
	static _Atomic bool allowed;
	CUstream stream;
	uint32_t epoch;

	CHECK_EQUAL(create_hidden(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS); /* a look at the streams does not see it */
	CUDA(MemsetD32(block, ++expected[0], MiB(2) / 4));
	CUDA(CtxSynchronize());
	atomic_store(&allowed, false);
	do {
		board_arm("cuMemcpyDtoHAsync:HOLD:1");
		epoch = controller_command(AFFINODE_COMMAND_PARK, how);
	} while (!board_holds_in(epoch)); /* this machine is too slow for the mover's patience */
	CHECK_EQUAL(call_hidden(stream, wait_until_allowed, &allowed), CUDA_SUCCESS);
	CHECK_EQUAL(set_later_hidden(block + MiB(2), ++expected[1], MiB(2) / 4, stream), CUDA_SUCCESS);
	board_disarm();
	CHECK_EQUAL(controller_reply(epoch).status, AFFINODE_BUSY);
	atomic_store(&allowed, true);
	PAGE_UNTIL(page.state == AFFINODE_STATE_RESIDENT); /* the mover waited for it, too; its reply came before */
	CUDA(CtxSynchronize());
	contents_are_as_written();
	controller_park();
	resumes();
}

static bool say(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool said = fd >= 0 && write(fd, text, strlen(text)) > 0;

	if (fd >= 0)
		close(fd);
	return said;
}

/* A descriptor whose name is that of a network card's device, from a name space of its own; -1: this machine allows none.  */
static int open_network_card(void)
{
	char folder[] = "/tmp/affinode-card-XXXXXX", ids[2][64];
	char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 0;
	struct iovec part = {&byte, 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
				 .msg_controllen = sizeof(control)};
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
	int ends[2], fd = -1;
	pid_t pid;

	snprintf(ids[0], sizeof(ids[0]), "%d %d 1", getuid(), getuid());
	snprintf(ids[1], sizeof(ids[1]), "%d %d 1", getgid(), getgid());
	CHECK(mkdtemp(folder) != NULL);
	CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		if (unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && say("/proc/self/uid_map", ids[0]) &&
		    say("/proc/self/setgroups", "deny") && say("/proc/self/gid_map", ids[1]) &&
		    mount("none", folder, "tmpfs", 0, "") == 0 && chdir(folder) == 0 && mkdir("dev", 0700) == 0 &&
		    mkdir("dev/infiniband", 0700) == 0)
			fd = open("dev/infiniband/uverbs0", O_CREAT | O_RDWR, 0600);
		if (fd < 0 || chdir("/") != 0 || umount2(folder, MNT_DETACH) != 0)
			_exit(1);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
		_exit(sendmsg(ends[1], &message, 0) == 1 ? 0 : 1);
	}
	close(ends[1]);
	if (recvmsg(ends[0], &message, MSG_CMSG_CLOEXEC) == 1)
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	close(ends[0]);
	waitpid(pid, NULL, 0);
	rmdir(folder);
	return fd;
}

/* Its memory may be a network card's to write to: it stays, and the page says why; until the device is closed.  */
static void stays_while_a_network_card_is_open(void)
{
	int fd = open_network_card();
	struct affinode_reply reply;

	if (fd < 0) {
		printf("no name spaces here: an open network card is not shown\n");
		return;
	}
	reply = controller_reply(controller_command(AFFINODE_COMMAND_PARK, 0));
	CHECK_EQUAL(reply.status, AFFINODE_NOTHING);
	CHECK(strstr(reply.text, "/dev/infiniband/uverbs") != NULL);
	PAGE_UNTIL(page.gpus[0].unmovable_bytes[AFFINODE_UNMOVABLE_DEVICE] == BYTES && page.gpus[0].resident_bytes == 0);
	close(fd);
	PAGE_UNTIL(page.gpus[0].unmovable_bytes[AFFINODE_UNMOVABLE_DEVICE] == 0 && page.gpus[0].resident_bytes == BYTES);
	controller_park();
	resumes();
}

int main(int argc, char **argv)
{
	test_begin(argc, argv, 60);
	board_make();
	cuda_start();
	*(void **)&set_hidden = cuda_hidden("cuMemsetD32_v2");
	*(void **)&set_later_hidden = cuda_hidden("cuMemsetD32Async");
	*(void **)&call_hidden = cuda_hidden("cuLaunchHostFunc");
	*(void **)&create_hidden = cuda_hidden("cuStreamCreate");
	controller_accept();
	CUDA(MemAlloc(&block, BYTES));
	for (unsigned i = 0; i < CHUNKS; i++) {
		expected[i] = i + 1;
		CUDA(MemsetD32(block + i * MiB(2), expected[i], MiB(2) / 4));
	}
	controller_park();
	resumes();
	is_not_lost("cuMemcpyDtoHAsync", 1, 0);
	is_not_lost("cuCtxSynchronize", 2, 0);
	is_not_lost("cuCtxSynchronize", 2, AFFINODE_MOVE_PREPARE);
	is_not_lost("cuMemcpyDtoHAsync", 1, AFFINODE_MOVE_PREEMPT);
	is_waited_for_once_submitted(0);
	is_waited_for_once_submitted(AFFINODE_MOVE_PREEMPT);
	is_not_lost_where_nothing_is_copied("cuCtxSynchronize");
	is_not_lost_where_nothing_is_copied("cuStreamQuery");
	stays_while_a_network_card_is_open();
	return 0;
}
