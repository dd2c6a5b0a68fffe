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

/* The name of a process's socket is made of its 16 random bytes. A descriptor, or a negative errno.  */
int ipc_socket_listen(const uint8_t process[16]);

/* One request of our own user; -EAGAIN: no more. Whatever else comes is dropped.  */
int ipc_socket_take(int fd, struct ipc_request *request, struct ipc_sender *sender);

/* Without waiting, with `count` descriptors, IPC_DESCRIPTORS_MAX at most. A process that does not read its answer
 * does not get it.  */
void ipc_socket_answer(int fd, const struct ipc_sender *to, const struct ipc_reply *reply, const int *fds,
		       unsigned count);

/* Ask, and wait some seconds at most: 0 with *count descriptors to be closed, or a negative errno with none.  */
int ipc_socket_ask(const uint8_t process[16], const struct ipc_request *request, struct ipc_reply *reply,
		   int fds[IPC_DESCRIPTORS_MAX], unsigned *count);
