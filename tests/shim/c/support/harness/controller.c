#include "controller.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "harness.h"

static char link_path[96];
static int listener = -1, link_fd = -1;
static const struct affinode_page *_Atomic page;
static uint32_t epoch;
static struct affinode_hello hello; /* the last */

#define KEPT 256
static struct affinode_reply replies[KEPT];
static struct affinode_notify notices[KEPT];
static unsigned reply_count, notice_count, heartbeats;

static void listen_at_path(void)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};

	unlink(link_path);
	snprintf(un.sun_path, sizeof(un.sun_path), "%s", link_path);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	CHECK(listener >= 0);
	CHECK_EQUAL(bind(listener, (struct sockaddr *)&un, sizeof(un)), 0);
	CHECK_EQUAL(listen(listener, 8), 0);
}

void controller_begin(const char *folder)
{
	snprintf(link_path, sizeof(link_path), "%s/link.sock", folder);
	listen_at_path();
}

void test_say_page(void)
{
	const struct affinode_page *now = atomic_load(&page);

	if (now)
		fprintf(stderr, "page: state %u want %u inside %u captures %u flags %x parks %llu resumes %llu\n",
			now->state, now->want, now->calls_in_flight, now->captures, now->flags,
			(unsigned long long)now->parks, (unsigned long long)now->resumes);
}

static void take_hello(void)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = {&hello, sizeof(hello)};
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
				 .msg_controllen = sizeof(control)};
	void *mapped;
	int fd;

	CHECK_EQUAL(recvmsg(link_fd, &message, MSG_CMSG_CLOEXEC), sizeof(hello));
	CHECK_EQUAL(hello.header.magic, AFFINODE_LINK_MAGIC);
	CHECK_EQUAL(hello.header.type, AFFINODE_HELLO);
	CHECK(CMSG_FIRSTHDR(&message) != NULL);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	/* in the old one's place: a thread that reads it meanwhile, to say where it hangs, reads one of them */
	mapped = mmap((void *)page, AFFINODE_PAGE_SIZE, PROT_READ, MAP_SHARED | (page ? MAP_FIXED : 0), fd, 0);
	CHECK(mapped != MAP_FAILED);
	atomic_store(&page, mapped);
	close(fd);
	CHECK_EQUAL(page->magic, AFFINODE_PAGE_MAGIC);
}

void controller_accept_silently(void)
{
	if (link_fd >= 0)
		close(link_fd);
	link_fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	CHECK(link_fd >= 0);
	epoch = 0;
	reply_count = notice_count = heartbeats = 0;
	take_hello();
}

void controller_welcome(void)
{
	struct affinode_welcome welcome = {.heartbeat_ms = 30000, .controller_version = "test"};

	controller_send(AFFINODE_WELCOME, &welcome, sizeof(welcome), 0);
}

void controller_accept(void)
{
	controller_accept_silently();
	controller_welcome();
}

void controller_start_again(void)
{
	controller_listen_again();
	controller_accept();
}

void controller_drop(void)
{
	close(link_fd);
	link_fd = -1;
}

struct controller_aside {
	int fd;
	const struct affinode_page *page;
	uint32_t epoch;
};

struct controller_aside *controller_put_aside(void)
{
	struct controller_aside *aside = malloc(sizeof(*aside));

	CHECK(aside != NULL);
	*aside = (struct controller_aside){link_fd, atomic_load(&page), epoch};
	link_fd = -1;
	atomic_store(&page, NULL);
	return aside;
}

void controller_take_again(struct controller_aside *aside)
{
	struct affinode_heartbeat heartbeat;

	CHECK_EQUAL(link_fd, -1);
	link_fd = aside->fd;
	epoch = aside->epoch;
	reply_count = notice_count = heartbeats = 0;
	atomic_store(&page, aside->page);
	free(aside);
	controller_send(AFFINODE_HEARTBEAT, &heartbeat, sizeof(heartbeat), 0);
}

void controller_kill(void)
{
	close(listener);
	listener = -1;
	controller_drop();
}

void controller_stop(void)
{
	controller_kill();
	unlink(link_path);
}

void controller_listen_again(void)
{
	listen_at_path();
}

struct affinode_hello controller_hello(void)
{
	return hello;
}

int controller_fd(void)
{
	return link_fd;
}

void controller_send(uint16_t type, void *message, uint32_t size, uint32_t number)
{
	struct affinode_header *header = message;

	*header = (struct affinode_header){AFFINODE_LINK_MAGIC, AFFINODE_PROTOCOL_VERSION, type, size, number};
	CHECK_EQUAL(send(link_fd, message, size, MSG_NOSIGNAL), size);
}

static uint32_t command(uint32_t what, uint64_t argument, uint32_t request, uint64_t deadline_ns)
{
	struct affinode_command message = {.command = what, .argument = argument, .request = request,
					   .deadline_ns = deadline_ns, .reason = "test"};

	controller_send(AFFINODE_COMMAND, &message, sizeof(message), ++epoch);
	return epoch;
}

/* With a descriptor.  */
static uint32_t command_about(int fd, uint32_t what, uint64_t argument)
{
	struct affinode_command message = {.header = {AFFINODE_LINK_MAGIC, AFFINODE_PROTOCOL_VERSION, AFFINODE_COMMAND,
						      sizeof(message), ++epoch},
					   .command = what, .request = epoch, .argument = argument};
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
	struct iovec iov = {&message, sizeof(message)};
	struct msghdr packet = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
				.msg_controllen = sizeof(control)};

	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	CHECK_EQUAL(sendmsg(link_fd, &packet, MSG_NOSIGNAL), sizeof(message));
	return message.request;
}

uint32_t controller_lend_file(int fd, uint64_t bytes)
{
	return command_about(fd, AFFINODE_COMMAND_LOT, bytes);
}

void controller_forget(int fd)
{
	command_about(fd, AFFINODE_COMMAND_LOT_FORGET, 0);
}

uint32_t controller_lend(uint64_t bytes)
{
	int fd = memfd_create("lot", MFD_CLOEXEC);
	uint32_t number;

	CHECK(fd >= 0);
	CHECK_EQUAL(posix_fallocate(fd, 0, (off_t)bytes), 0); /* touched */
	number = controller_lend_file(fd, bytes);
	controller_forget(fd); /* unmapped when it is given back, as one that goes to another user */
	close(fd);
	return number;
}

uint32_t controller_resume_on(const char *gpu, uint64_t more)
{
	struct affinode_command message = {.command = AFFINODE_COMMAND_RESUME, .argument = AFFINODE_MOVE_MIGRATE | more};

	snprintf(message.reason, sizeof(message.reason), "%s", gpu);
	controller_send(AFFINODE_COMMAND, &message, sizeof(message), ++epoch);
	return epoch;
}

static uint32_t command_with_folder(uint32_t what, uint64_t bytes, const char *folder)
{
	struct affinode_command message = {.command = what, .argument = bytes};

	snprintf(message.reason, sizeof(message.reason), "%s", folder);
	controller_send(AFFINODE_COMMAND, &message, sizeof(message), ++epoch);
	return epoch;
}

uint32_t controller_spill(uint64_t bytes, const char *folder)
{
	return command_with_folder(AFFINODE_COMMAND_SPILL, bytes, folder);
}

uint32_t controller_share(const char *folder, uint64_t number)
{
	return command_with_folder(AFFINODE_COMMAND_SHARE, number, folder);
}

uint32_t controller_into_image(const char *folder)
{
	return command_with_folder(AFFINODE_COMMAND_HIBERNATE, 0, folder);
}

uint32_t controller_command(uint32_t what, uint64_t argument)
{
	return command(what, argument, 0, 0);
}

void controller_answer_room(uint32_t request, bool granted)
{
	command(AFFINODE_COMMAND_ROOM, granted, request, 0);
}

bool controller_pump(void)
{
	union {
		struct affinode_header header;
		struct affinode_reply reply;
		struct affinode_notify notify;
		char bytes[1024];
	} message;

	for (;;) {
		ssize_t n = recv(link_fd, &message, sizeof(message), MSG_DONTWAIT);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return true;
		if (n <= 0)
			return false;
		CHECK_EQUAL(message.header.size, n);
		if (message.header.type == AFFINODE_REPLY)
			replies[reply_count++ % KEPT] = message.reply;
		else if (message.header.type == AFFINODE_NOTIFY)
			notices[notice_count++ % KEPT] = message.notify;
		heartbeats += message.header.type == AFFINODE_HEARTBEAT;
	}
}

unsigned controller_heartbeats(void)
{
	return heartbeats;
}

/* How the command ended or, if asked for, that it is prepared.  */
static const struct affinode_reply *reply_to(uint32_t number, bool prepared)
{
	unsigned kept = reply_count < KEPT ? reply_count : KEPT;

	for (unsigned i = 0; i < kept; i++)
		if (replies[i].header.epoch == number && (replies[i].status == AFFINODE_PREPARED) == prepared)
			return &replies[i];
	return NULL;
}

bool controller_replied(uint32_t number)
{
	return reply_to(number, false) != NULL;
}

bool controller_is_prepared(uint32_t number)
{
	return reply_to(number, true) != NULL;
}

bool controller_prepared(uint32_t number)
{
	while (!controller_is_prepared(number) && !controller_replied(number)) {
		struct pollfd fd = {.fd = link_fd, .events = POLLIN};

		poll(&fd, 1, 100);
		CHECK(controller_pump());
	}
	return controller_is_prepared(number);
}

uint64_t controller_lacks(uint32_t number)
{
	CHECK(controller_prepared(number));
	return reply_to(number, true)->bytes;
}

void controller_decide(uint32_t number, bool commit)
{
	command(commit ? AFFINODE_COMMAND_COMMIT : AFFINODE_COMMAND_ABORT, 0, number, 0);
}

struct affinode_reply controller_reply(uint32_t number)
{
	while (!controller_replied(number)) {
		struct pollfd fd = {.fd = link_fd, .events = POLLIN};

		poll(&fd, 1, 100);
		CHECK(controller_pump());
	}
	return *reply_to(number, false);
}

const struct move kinds_of_move[MOVES] = {
	{"park", AFFINODE_COMMAND_PARK, 0, false},
	{"resume", AFFINODE_COMMAND_RESUME, 0, false},
	{"streamed park", AFFINODE_COMMAND_PARK, AFFINODE_MOVE_STREAM, false},
	{"streamed resume", AFFINODE_COMMAND_RESUME, AFFINODE_MOVE_STREAM, false},
	{"resume that hands over", AFFINODE_COMMAND_RESUME, HANDS_OVER, false},
	{"park that is handed lots", AFFINODE_COMMAND_PARK, HANDS_OVER | LOTS_ALONE, false},
	{"park of the rest", AFFINODE_COMMAND_PARK, HANDS_OVER, true},
};

int controller_move(uint32_t what)
{
	return controller_reply(controller_command(what, 0)).status;
}

void controller_park_with(uint64_t how)
{
	int status;

	do
		status = controller_reply(controller_command(AFFINODE_COMMAND_PARK, how)).status;
	while (status == AFFINODE_BUSY);
	CHECK_EQUAL(status, AFFINODE_OK);
}

void controller_park(void)
{
	controller_park_with(0);
}

uint32_t controller_prepare(uint32_t what, uint64_t how)
{
	uint32_t number;

	do
		number = controller_command(what, AFFINODE_MOVE_PREPARE | how);
	while (!controller_prepared(number) && controller_reply(number).status == AFFINODE_BUSY);
	return number;
}

void controller_trim(void)
{
	uint64_t seen_ns = page_read().heartbeat_ns;

	controller_command(AFFINODE_COMMAND_TRIM, 0);
	PAGE_UNTIL(page.heartbeat_ns > seen_ns && page.retained_bytes == 0); /* not what was there before the last move */
}

uint32_t controller_noticed_flags;

uint32_t controller_noticed(uint32_t kind, uint64_t *bytes)
{
	for (;;) {
		struct pollfd fd = {.fd = link_fd, .events = POLLIN};

		for (unsigned i = notice_count < KEPT ? 0 : notice_count - KEPT; i < notice_count; i++) {
			struct affinode_notify *notify = &notices[i % KEPT];

			if (notify->kind != kind)
				continue;
			notify->kind = 0; /* each is noticed once */
			if (bytes)
				*bytes = notify->bytes;
			controller_noticed_flags = notify->flags;
			return notify->header.epoch;
		}
		poll(&fd, 1, 100);
		CHECK(controller_pump());
	}
}

unsigned controller_count(uint32_t kind)
{
	unsigned count = 0;

	CHECK(controller_pump());
	for (unsigned i = notice_count < KEPT ? 0 : notice_count - KEPT; i < notice_count; i++) {
		count += notices[i % KEPT].kind == kind;
		if (notices[i % KEPT].kind == kind)
			notices[i % KEPT].kind = 0;
	}
	return count;
}

/* What a process was writing when it ended stays half written.  */
static bool writer_is_gone(const struct affinode_page *now)
{
	return kill((pid_t)now->pid, 0) != 0 && errno == ESRCH;
}

struct affinode_page page_read(void)
{
	const struct affinode_page *now = atomic_load(&page);
	struct affinode_page copy;

	for (bool gone = false;; gone = writer_is_gone(now)) {
		uint64_t before = __atomic_load_n(&now->sequence, __ATOMIC_ACQUIRE), after;

		memcpy(&copy, now, sizeof(copy));
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		after = __atomic_load_n(&now->sequence, __ATOMIC_RELAXED);
		if (gone || (before == after && before % 2 == 0))
			return copy;
	}
}
