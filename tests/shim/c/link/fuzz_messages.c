/* What a controller's bytes can do to the parser: nothing but be taken or refused. The target of clang's fuzzer, built and
 * run by `make fuzz`; the same over a real socket, without clang, is storm.c.  */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "link/messages.h"
#include "state/controller.h"
#include "state/depth.h"
#include "state/shim_state.h"
#include "state/status_page.h"

/* What the parser's file needs of the others for its hello.  */
void link_wake(void)
{
}

int page_open_read_only(void)
{
	return -1;
}

bool checkpoint_is_possible(void)
{
	return false;
}

bool migration_is_possible(void)
{
	return false;
}

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
