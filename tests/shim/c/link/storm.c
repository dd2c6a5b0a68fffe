/* A controller that sends good messages, damaged ones and noise, at random, over the real socket: the process goes on, its
 * contents stay, and a sane controller that comes afterwards finds it as ever.  */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "harness.h"

#define MESSAGES 250

static CUdeviceptr block;
static _Atomic bool stop;
static _Atomic unsigned sent;
static uint64_t random_state;

static unsigned pick(unsigned n)
{
	return (unsigned)(test_random(&random_state) % n);
}

/* Commands that end or cancel what the test itself does are left to the other tests.  */
static size_t good_message(unsigned char *bytes, uint32_t epoch)
{
	static const struct {
		uint16_t type;
		size_t size;
	} kinds[] = {{AFFINODE_WELCOME, sizeof(struct affinode_welcome)},
		     {AFFINODE_COMMAND, sizeof(struct affinode_command)},
		     {AFFINODE_COMMAND, sizeof(struct affinode_command)},
		     {AFFINODE_NOTICE, sizeof(struct affinode_notice)},
		     {AFFINODE_RESULT, sizeof(struct affinode_result)},
		     {AFFINODE_HEARTBEAT, sizeof(struct affinode_heartbeat)},
		     {0xf0, 40}};
	unsigned kind = pick(sizeof(kinds) / sizeof(kinds[0]));
	struct affinode_header header = {AFFINODE_LINK_MAGIC, AFFINODE_PROTOCOL_VERSION, kinds[kind].type,
					 (uint32_t)kinds[kind].size, epoch};

	for (size_t i = 0; i < kinds[kind].size; i++)
		bytes[i] = (unsigned char)pick(256);
	memcpy(bytes, &header, sizeof(header));
	if (header.type == AFFINODE_COMMAND) {
		static const uint32_t commands[] = {AFFINODE_COMMAND_PARK, AFFINODE_COMMAND_RESUME,
						    AFFINODE_COMMAND_CANCEL_END, AFFINODE_COMMAND_ROOM, 99};

		((struct affinode_command *)(void *)bytes)->command = commands[pick(5)];
		((struct affinode_command *)(void *)bytes)->deadline_ns = pick(2) ? 0 : test_random(&random_state);
	}
	return kinds[kind].size;
}

static bool is_dangerous(const unsigned char *bytes)
{
	const struct affinode_command *command = (const void *)bytes;

	return command->header.type == AFFINODE_COMMAND && (command->command == AFFINODE_COMMAND_CANCEL ||
							    command->command == AFFINODE_COMMAND_DYING);
}

static void send_one(uint32_t epoch)
{
	static unsigned char bytes[2048] __attribute__((aligned(8)));
	size_t size = good_message(bytes, epoch);

	switch (pick(8)) {
	case 0:
		bytes[pick((unsigned)size)] ^= (unsigned char)(1u << pick(8));
		break;
	case 1:
		size = pick((unsigned)size) + 1;
		break;
	case 2:
		size = pick(sizeof(bytes)) + 1;
		break;
	default:
		break;
	}
	if (is_dangerous(bytes))
		return;
	send(controller_fd(), bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void *compute(void *unused)
{
	uint32_t added = 0;

	(void)unused;
	CUDA(CtxSetCurrent(cuda_context));
	while (!atomic_load(&stop)) {
		unsigned seen = atomic_load(&sent);

		CHECK_EQUAL(launch_add(NULL, block, MiB(2), 1), CUDA_SUCCESS);
		CUDA(CtxSynchronize());
		CHECK(holds_pattern(block, MiB(2), 111, ++added));
		UNTIL(atomic_load(&stop) || atomic_load(&sent) > seen + 8); /* some of them park it meanwhile */
	}
	return NULL;
}

int main(int argc, char **argv)
{
	unsigned dropped = 0;
	uint32_t epoch = 0;
	pthread_t thread;

	cuda_begin(argc, argv, 40);
	random_state = test_seed;

	block = cuda_block(MiB(2), 111);
	thread_start(&thread, compute, NULL);
	while (sent < MESSAGES) {
		for (unsigned burst = pick(8); burst; burst--, sent++)
			send_one(++epoch);
		if (!controller_pump()) {
			dropped++;
			controller_accept();
			epoch = 0;
		}
		test_pause();
	}
	controller_drop();
	controller_accept();
	UNTIL(controller_move(AFFINODE_COMMAND_RESUME) != AFFINODE_BUSY); /* what was sent last may be under way still */
	atomic_store(&stop, true);
	thread_join(thread);
	PAGE_UNTIL(page.state == AFFINODE_STATE_RESIDENT);
	CHECK(dropped > 0);
	printf("%u messages, %u times dropped, %llu parks\n", sent, dropped, (unsigned long long)page_read().parks);
	return 0;
}
