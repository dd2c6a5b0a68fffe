/* What a controller's bytes can do to the parser: nothing but be taken or refused. With clang's fuzzer it searches
 * (make fuzz); with the driver in fuzz_messages_plain.c it mutates good messages at random for a few seconds.  */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "link_socket.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int is_terminated(const char *text, size_t size)
{
	return memchr(text, 0, size) != NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* As link_socket_receive has it: on the heap, so that a step beyond is seen.  */
	union link_message *message = malloc(sizeof(*message));
	size_t taken = size < sizeof(*message) ? size : sizeof(*message);

	if (!message)
		return 0;
	memset(message, 0xa5, sizeof(*message));
	memcpy(message, data, taken);
	if (link_message_check(message, size) == 0) {
		if (size > sizeof(*message) || message->header.size != size)
			abort();
		switch (message->header.type) {
		case AFFINODE_COMMAND:
			if (size != sizeof(message->command) ||
			    !is_terminated(message->command.reason, sizeof(message->command.reason)))
				abort();
			break;
		case AFFINODE_NOTICE:
			if (size != sizeof(message->notice) ||
			    !is_terminated(message->notice.text, sizeof(message->notice.text)))
				abort();
			break;
		case AFFINODE_RESULT:
			if (size != sizeof(message->result) ||
			    !is_terminated(message->result.text, sizeof(message->result.text)))
				abort();
			break;
		case AFFINODE_WELCOME:
			if (size != sizeof(message->welcome) ||
			    !is_terminated(message->welcome.controller_version,
					   sizeof(message->welcome.controller_version)))
				abort();
			break;
		default:
			break;
		}
	}
	free(message);
	return 0;
}
