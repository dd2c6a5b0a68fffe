/* How a descriptor goes from the process that exports memory to the one that opens it: one datagram each way, between
 * abstract Unix sockets, with the kernel's word for which process sent it.  */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

/* One for each part of a block (block.h).  */
#define IPC_DESCRIPTORS_MAX 240

struct ipc_request {
	uint64_t magic;
	uint32_t version;
	uint32_t reserved;
	uint8_t token[16];
};

struct ipc_reply {
	uint64_t magic;
	int32_t error; /* 0, or a negative errno: then no descriptors come with it */
	uint32_t reserved;
	uint8_t token[16];
	uint64_t size, mapped; /* bytes of the block, and of what the descriptors stand for together */
};

struct ipc_sender {
	struct sockaddr_un address;
	socklen_t size;
};

/* Listen on the process's socket, whose name is made of its 16 random bytes. Return a descriptor or a negative errno.  */
int ipc_socket_listen(const uint8_t process[16]);

/* Receive a request of this user's. Return 0, or -EAGAIN if there is none; anything else that comes is dropped.  */
int ipc_socket_take(int fd, struct ipc_request *request, struct ipc_sender *sender);

/* Send an answer with `count` descriptors, IPC_DESCRIPTORS_MAX at most, without waiting: a process that does not read its answers
 * loses them.  */
void ipc_socket_answer(int fd, const struct ipc_sender *to, const struct ipc_reply *reply, const int *fds,
		       unsigned count);

/* Ask a process, and wait some seconds at most. Return 0 and *count descriptors, which the caller closes, or a negative errno and
 * none.  */
int ipc_socket_ask(const uint8_t process[16], const struct ipc_request *request, struct ipc_reply *reply,
		   int fds[IPC_DESCRIPTORS_MAX], unsigned *count);
