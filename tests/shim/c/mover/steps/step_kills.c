/* A process is killed at any one driver call of its park or of its resume: nothing of it is left on the GPU, and the next
 * process has all of it.  */
#include "board.h"
#include "contents.h"
#include "harness.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#define DIED (-1)

/* NVML is how any other process sees the GPU.  */
struct memory {
	unsigned long long total, free, used;
};

static int (*get_handle)(unsigned, void **);
static int (*get_memory)(void *, struct memory *);

static void look_through_nvml(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	int (*begin)(void);

	CHECK(library != NULL);
	*(void **)&begin = dlsym(library, "nvmlInit_v2");
	*(void **)&get_handle = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&get_memory = dlsym(library, "nvmlDeviceGetMemoryInfo");
	CHECK_EQUAL(begin(), 0);
}

static unsigned long long used_bytes(void)
{
	struct memory memory;
	void *gpu;

	CHECK_EQUAL(get_handle(0, &gpu), 0);
	CHECK_EQUAL(get_memory(gpu, &memory), 0);
	return memory.used;
}

/* The reply's status, or DIED.  */
static int move_or_die(const struct move *move)
{
	uint32_t epoch = controller_command(move->command, move->how);

	for (;;) {
		if (!controller_pump())
			return DIED;
		if (controller_replied(epoch))
			return controller_reply(epoch).status;
		test_pause();
	}
}

/* Whether the call was reached.  */
static bool killed_at(const struct move *at, unsigned nth)
{
	pid_t pid = contents_child_start();
	int status;

	test_at("%s, call %u", at->name, nth);
	contents_make_ready(at);
	do {
		board_arm("*:KILL:%u", nth);
		status = move_or_die(at);
	} while (status == AFFINODE_BUSY); /* this machine was too slow for the mover's patience */
	if (status != DIED) {
		CHECK_EQUAL(status, AFFINODE_OK);
		kill(pid, SIGKILL);
	}
	CHECK_EQUAL(child_wait(pid), 128 + SIGKILL);
	board_disarm();
	CHECK_EQUAL(used_bytes(), 0);
	return status == DIED;
}

int main(int argc, char **argv)
{
	test_begin(argc, argv, 140);
	if (test_role)
		contents_child();
	board_make();
	look_through_nvml();
	for (const struct move *at = kinds_of_move; at < kinds_of_move + MOVES; at++)
		AT_EVERY_CALL(killed_at(at, nth), "killed in a %s", at->name);
	/* And one that is not killed, on the same GPU.  */
	kill(contents_child_start(), SIGKILL);
	return 0;
}
