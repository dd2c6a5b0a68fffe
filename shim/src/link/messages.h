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

/* Connect, without blocking later, to a controller that this user or root runs. Return the socket or a negative errno.  */
int link_socket_connect(void);

/* Send HELLO with the page. Return 0 or a negative errno.  */
int link_socket_hello(int fd);

/* Receive a message, and in *descriptor what came with it, for the caller to close; -1 if nothing did. Return 0, -EAGAIN, -EPROTO for a
 * malformed one, after which the caller hangs up, or another negative errno.  */
int link_socket_receive(int fd, union link_message *message, int *descriptor);

/* Return 0 if `size` bytes are a well-formed message for the shim, else -EPROTO. Strings in it end with a NUL afterwards.  */
int link_message_check(union link_message *message, size_t size);
