/* The link's socket: finding the controller, saying hello, and reading what it sends without trusting it.  */
#pragma once

#include <stddef.h>
#include <sys/types.h>

#include "protocol.h"

union link_message {
	struct affinode_header header;
	struct affinode_welcome welcome;
	struct affinode_command command;
	struct affinode_notice notice;
	struct affinode_result result;
	struct affinode_heartbeat heartbeat;
};

/* A non-blocking connection to a controller run by us or by root; negative errno.  */
int link_socket_connect(void);

/* Send HELLO with the page; 0 or a negative errno.  */
int link_socket_hello(int fd);

/* One message, and in *descriptor what came with it for the caller to close, -1: nothing; 0, -EAGAIN, -EPROTO (malformed: drop the peer), or another negative errno.  */
int link_socket_receive(int fd, union link_message *message, int *descriptor);

/* Whether `size` bytes are a well-formed message for the shim: 0 or -EPROTO. Strings come out NUL-terminated.  */
int link_message_check(union link_message *message, size_t size);
