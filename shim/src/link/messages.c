#define _GNU_SOURCE
#include "link/messages.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/discovery.h"
#include "base/environment.h"
#include "base/log.h"
#include "base/text_file.h"
#include "link/grant.h"
#include "state/depth.h"
#include "state/shim_state.h"
#include "state/status_page.h"

static int address(unsigned place, struct sockaddr_un *un)
{
	char folder[sizeof(un->sun_path)];
	int n, error = discovery_folder(place, folder, sizeof(folder));

	if (error)
		return error;
	memset(un, 0, sizeof(*un));
	un->sun_family = AF_UNIX;
	n = snprintf(un->sun_path, sizeof(un->sun_path), "%s/link.sock", folder);
	return n > 0 && (size_t)n < sizeof(un->sun_path) ? 0 : -ENAMETOOLONG;
}

/* Return 0 if the process that listens is this user's or root's: it decides over this process's memory.  */
static int check_peer(int fd)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
		return -errno;
	return peer.uid == 0 || peer.uid == geteuid() ? 0 : -EPERM;
}

static int connect_to(unsigned place)
{
	struct sockaddr_un un;
	int fd, error = address(place, &un);

	if (error)
		return error;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	error = connect(fd, (struct sockaddr *)&un, sizeof(un)) == 0 ? check_peer(fd) : -errno;
	if (error == 0)
		return fd;
	close(fd);
	return error;
}

/* Connect to the first controller that listens, even one with a full backlog (EAGAIN). A socket that the machine's controller
 * left behind keeps no process from its user's controller. Return ECONNREFUSED where none listens and one was killed.  */
int link_socket_connect(void)
{
	int got = -ENOENT;
	bool is_left = false;

	for (unsigned place = 0; got < 0 && got != -ERANGE && got != -EAGAIN; place++) {
		got = connect_to(place);
		is_left = is_left || got == -ECONNREFUSED;
	}
	return got == -ERANGE && is_left ? -ECONNREFUSED : got;
}

/* Read the process's own name, as ps shows it.  */
static void read_command_name(char *name, size_t size)
{
	text_read("/proc/self/comm", name, size);
	name[strcspn(name, "\n")] = 0;
}

static void fill_hello(struct affinode_hello *hello, bool grant_follows)
{
	const char *kernel_id = environment_noted(AFFINODE_ENV_KERNEL_ID);

	memset(hello, 0, sizeof(*hello));
	hello->header = (struct affinode_header){AFFINODE_LINK_MAGIC, AFFINODE_PROTOCOL_VERSION, AFFINODE_HELLO,
						 sizeof(*hello), 0};
	hello->pid = (int32_t)getpid();
	hello->flags = (checkpoint_is_possible() ? AFFINODE_HELLO_CONTEXT : 0u) |
		       (checkpoint_is_possible() && migration_is_possible() ? AFFINODE_HELLO_MIGRATES : 0u) |
		       (grant_follows ? AFFINODE_HELLO_GRANT : 0u);
	hello->process_group = (uint32_t)getpgrp();
	if (kernel_id)
		snprintf(hello->kernel_id, sizeof(hello->kernel_id), "%s", kernel_id);
	read_command_name(hello->command, sizeof(hello->command));
	snprintf(hello->shim_version, sizeof(hello->shim_version), "%s", AFFINODE_SHIM_VERSION);
}

int link_socket_hello(int fd)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	struct affinode_hello hello;
	struct iovec iov = {&hello, sizeof(hello)};
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
				 .msg_controllen = sizeof(control)};
	char grant[AFFINODE_GRANT_SIZE];
	size_t grant_size = grant_take(grant);
	struct cmsghdr *cmsg;
	ssize_t sent;
	int error, page = page_open_read_only();

	if (page < 0)
		return page;
	fill_hello(&hello, grant_size > 0);
	memset(&control, 0, sizeof(control));
	cmsg = CMSG_FIRSTHDR(&message);
	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(cmsg), &page, sizeof(page));
	sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
	error = sent == (ssize_t)sizeof(hello) ? 0 : -errno;
	close(page);
	return error ? error : grant_send(fd, grant, grant_size);
}

static size_t size_of_type(uint16_t type)
{
	switch (type) {
	case AFFINODE_WELCOME:
		return sizeof(struct affinode_welcome);
	case AFFINODE_COMMAND:
		return sizeof(struct affinode_command);
	case AFFINODE_NOTICE:
		return sizeof(struct affinode_notice);
	case AFFINODE_RESULT:
		return sizeof(struct affinode_result);
	case AFFINODE_HEARTBEAT:
		return sizeof(struct affinode_heartbeat);
	default:
		return 0;
	}
}

static void terminate(char *text, size_t size)
{
	text[size - 1] = 0;
}

int link_message_check(union link_message *message, size_t size)
{
	const struct affinode_header *header = &message->header;
	size_t expected;

	if (size < sizeof(*header) || size > sizeof(*message) || header->magic != AFFINODE_LINK_MAGIC ||
	    header->size != size || header->version != AFFINODE_PROTOCOL_VERSION)
		return -EPROTO;
	expected = size_of_type(header->type);
	if (expected != size)
		return -EPROTO;
	if (header->type == AFFINODE_WELCOME)
		terminate(message->welcome.controller_version, sizeof(message->welcome.controller_version));
	else if (header->type == AFFINODE_COMMAND)
		terminate(message->command.reason, sizeof(message->command.reason));
	else if (header->type == AFFINODE_NOTICE)
		terminate(message->notice.text, sizeof(message->notice.text));
	else if (header->type == AFFINODE_RESULT)
		terminate(message->result.text, sizeof(message->result.text));
	return 0;
}

/* Return the first descriptor that came with the message, and close the others.  */
static int take_descriptor(struct msghdr *header)
{
	int first = -1;

	for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(header); cmsg; cmsg = CMSG_NXTHDR(header, cmsg)) {
		size_t n = cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS
				   ? (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int)
				   : 0;

		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(fd), sizeof(fd));
			if (first < 0)
				first = fd;
			else
				close(fd);
		}
	}
	return first;
}

int link_socket_receive(int fd, union link_message *message, int *descriptor)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = {message, sizeof(*message)};
	struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
				.msg_controllen = sizeof(control)};
	ssize_t n = recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	int error;

	*descriptor = -1;
	if (n < 0)
		return errno == EWOULDBLOCK || errno == EINTR ? -EAGAIN : -errno;
	*descriptor = take_descriptor(&header);
	if (n == 0)
		error = -ECONNRESET;
	else if (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
		error = -EPROTO;
	else
		error = link_message_check(message, (size_t)n);
	if (error && *descriptor >= 0) {
		close(*descriptor);
		*descriptor = -1;
	}
	return error;
}
