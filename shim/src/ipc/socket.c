#define _GNU_SOURCE
#include "ipc/socket.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/monotonic_futex.h"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

/* A process that is alive answers at once; one that is stopped is given up.  */
#define ANSWER_NS (5 * S_NS)

union control {
	struct cmsghdr header;
	char space[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(IPC_DESCRIPTORS_MAX * sizeof(int))];
};

static socklen_t name_of(const uint8_t process[16], struct sockaddr_un *un)
{
	int n;

	memset(un, 0, sizeof(*un));
	un->sun_family = AF_UNIX;
	n = snprintf(un->sun_path + 1, sizeof(un->sun_path) - 1, "affinode-ipc-");
	for (int i = 0; i < 16; i++)
		n += snprintf(un->sun_path + 1 + n, sizeof(un->sun_path) - 1 - (size_t)n, "%02x", process[i]);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* Have the kernel refuse descriptors where none are expected: any process in the network namespace may send here, and closing
 * another process's descriptor may block. Linux knows how since 6.16.  */
static void pass_descriptors(int fd, int on)
{
	int error = setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &on, sizeof(on));
	(void)error;
}

static int open_socket(void)
{
	int on = 1, fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -errno;
	pass_descriptors(fd, 0);
	if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0)
		return fd;
	close(fd);
	return -EPERM;
}

int ipc_socket_listen(const uint8_t process[16])
{
	struct sockaddr_un un;
	socklen_t size = name_of(process, &un);
	int error, fd = open_socket();

	if (fd < 0 || bind(fd, (struct sockaddr *)&un, size) == 0)
		return fd;
	error = -errno;
	close(fd);
	return error;
}

struct received {
	int fds[IPC_DESCRIPTORS_MAX];
	unsigned count;
};

static void close_received(struct received *received)
{
	while (received->count > 0)
		close(received->fds[--received->count]);
}

static void take_descriptors(const struct cmsghdr *cmsg, struct received *received)
{
	size_t count = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);

	for (size_t i = 0; i < count; i++) {
		int fd;

		memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(fd), sizeof(fd));
		if (received->count < IPC_DESCRIPTORS_MAX)
			received->fds[received->count++] = fd;
		else
			close(fd);
	}
}

/* Take the descriptors that came with a message. Return 0, or -EPERM if its sender is another user.  */
static int read_control(struct msghdr *message, struct received *received)
{
	int error = -EPERM;

	for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(message); cmsg; cmsg = CMSG_NXTHDR(message, cmsg)) {
		struct ucred sender;

		if (cmsg->cmsg_level != SOL_SOCKET)
			continue;
		if (cmsg->cmsg_type == SCM_CREDENTIALS && cmsg->cmsg_len >= CMSG_LEN(sizeof(sender))) {
			memcpy(&sender, CMSG_DATA(cmsg), sizeof(sender));
			error = sender.uid == getuid() ? 0 : -EPERM;
		} else if (cmsg->cmsg_type == SCM_RIGHTS) {
			take_descriptors(cmsg, received);
		}
	}
	return error;
}

/* Receive a message of exactly `size` bytes from this user. Return 0, -EAGAIN, or -EPROTO if it was another message.  */
static int receive(int fd, void *bytes, size_t size, struct ipc_sender *sender, struct received *received)
{
	union control control;
	struct iovec iov = {bytes, size};
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
				 .msg_controllen = sizeof(control)};
	ssize_t n;
	int error;

	received->count = 0;
	if (sender) {
		message.msg_name = &sender->address;
		message.msg_namelen = sizeof(sender->address);
	}
	n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return errno == EWOULDBLOCK || errno == EINTR ? -EAGAIN : -errno;
	if (sender)
		sender->size = message.msg_namelen;
	error = read_control(&message, received);
	if (!error && (size_t)n == size && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
		return 0;
	close_received(received);
	return -EPROTO;
}

int ipc_socket_take(int fd, struct ipc_request *request, struct ipc_sender *sender)
{
	struct received unwanted;
	int error = receive(fd, request, sizeof(*request), sender, &unwanted);

	close_received(&unwanted);
	return error;
}

void ipc_socket_answer(int fd, const struct ipc_sender *to, const struct ipc_reply *reply, const int *fds,
		       unsigned count)
{
	union control control;
	struct iovec iov = {(void *)reply, sizeof(*reply)};
	struct msghdr message = {.msg_name = (void *)&to->address, .msg_namelen = to->size, .msg_iov = &iov,
				 .msg_iovlen = 1};
	ssize_t sent;

	if (count > 0) {
		struct cmsghdr *cmsg;

		memset(&control, 0, sizeof(control));
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(count * sizeof(int));
		cmsg = CMSG_FIRSTHDR(&message);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(cmsg), fds, count * sizeof(int));
	}
	sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
	(void)sent;
}

/* Wait until the socket is ready for `events`. Return 0 or -ETIMEDOUT.  */
static int wait_ready(int fd, short events, uint64_t until_ns)
{
	for (;;) {
		struct pollfd pollfd = {.fd = fd, .events = events};
		uint64_t now = clock_ns();

		if (now >= until_ns)
			return -ETIMEDOUT;
		if (poll(&pollfd, 1, (int)((until_ns - now) / MS_NS) + 1) > 0)
			return 0;
	}
}

static int exchange(int fd, const struct ipc_request *request, struct ipc_reply *reply,
		    struct received *received)
{
	uint64_t until = clock_ns() + ANSWER_NS;

	while (send(fd, request, sizeof(*request), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return -errno;
		if (wait_ready(fd, POLLOUT, until) != 0) /* many ask at once */
			return -ETIMEDOUT;
	}
	for (;;) {
		int error;

		if (wait_ready(fd, POLLIN, until) != 0)
			return -ETIMEDOUT;
		error = receive(fd, reply, sizeof(*reply), NULL, received);
		if (error != -EAGAIN)
			return error;
	}
}

int ipc_socket_ask(const uint8_t process[16], const struct ipc_request *request, struct ipc_reply *reply,
		   int fds[IPC_DESCRIPTORS_MAX], unsigned *count)
{
	struct received received = {.count = 0};
	struct sockaddr_un un;
	socklen_t size = name_of(process, &un);
	int error = 0, fd = open_socket();

	*count = 0;
	if (fd < 0)
		return fd;
	/* Connected, it hears no other. The kernel chooses a name to answer to, since SO_PASSCRED is set.  */
	if (connect(fd, (struct sockaddr *)&un, size) != 0)
		error = -errno;
	pass_descriptors(fd, 1);
	if (error == 0)
		error = exchange(fd, request, reply, &received);
	close(fd);
	*count = received.count;
	memcpy(fds, received.fds, received.count * sizeof(*fds));
	return error;
}
