#include "depth.h"

#include "board.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sys/file.h>

#include <glob.h>

/* As the library says.  */
static bool shim_has_context_depth(void)
{
#ifdef SHIM_LINKED
	extern int affinode_has_context_depth(void);

	return affinode_has_context_depth();
#else
	int (*ask)(void);

	*(void **)&ask = dlsym(RTLD_DEFAULT, "affinode_has_context_depth");
	CHECK(ask != NULL);
	return ask();
#endif
}

void depth_is_needed(void)
{
	if (shim_has_context_depth())
		return;
	printf("skipped: this shim was built without context depth\n");
	exit(0);
}

void depth_ask(void)
{
	depth_is_needed();
	setenv("AFFINODE_DEPTH", "context", 1);
}

const char *uuid_text(const uint8_t *uuid)
{
	static char text[48];

	snprintf(text, sizeof(text), "GPU-");
	for (int i = 0; i < 16; i++)
		sprintf(strchr(text, '\0'), "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
	return text;
}

const char *gpu_uuid(void)
{
	return uuid_text(page_read().gpus[0].uuid);
}

FILE *ask_nvml(const char *gpu)
{
	char command[PATH_MAX + 96];
	ssize_t length = readlink("/proc/self/exe", command, PATH_MAX - 1);
	FILE *said;

	CHECK(length > 0);
	command[length] = '\0';
	snprintf(strrchr(command, '/'), 96, "/affinode-gpu-memory %s 1", gpu);
	said = popen(command, "re");
	CHECK(said != NULL);
	return said;
}

static void look(uint64_t *used, unsigned *processes)
{
	FILE *said = ask_nvml(gpu_uuid());

	CHECK_EQUAL(fscanf(said, "%*s %*s %" SCNu64 " %u", used, processes), 2);
	while (fgetc(said) != EOF)
		;
	CHECK_EQUAL(pclose(said), 0);
}

uint64_t gpu_used_bytes(void)
{
	uint64_t used;
	unsigned processes;

	look(&used, &processes);
	return used;
}

unsigned gpu_processes(void)
{
	uint64_t used;
	unsigned processes;

	look(&used, &processes);
	return processes;
}

struct affinode_reply park_deep(void)
{
	return controller_reply(controller_command(AFFINODE_COMMAND_PARK, AFFINODE_MOVE_CONTEXT));
}

void park_no_deeper(const char *because)
{
	struct affinode_reply reply;

	do
		reply = park_deep();
	while (reply.status == AFFINODE_BUSY); /* this machine is too slow for the mover's patience */
	CHECK_EQUAL(reply.status, AFFINODE_OK);
	if (!strstr(reply.text, because))
		test_fail(__FILE__, __LINE__, reply.text, 0);
	CHECK_EQUAL(page_read().depth, AFFINODE_DEPTH_MEMORY);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
}

void park_deep_surely(void)
{
	for (;;) {
		uint64_t seen_ns = page_read().heartbeat_ns;
		struct affinode_reply reply = park_deep();

		if (reply.status == AFFINODE_OK && page_read().depth == AFFINODE_DEPTH_CONTEXT)
			return;
		if (reply.status == AFFINODE_OK) {
			if (!strstr(reply.text, "just begun") && !strstr(reply.text, "waits") &&
			    !strstr(reply.text, "in progress") && !strstr(reply.text, "in time")) /* a look that took too long */
				test_fail(__FILE__, __LINE__, reply.text, 0);
			CHECK_RESUMES();
		}
		if (strstr(reply.text, "just begun"))
			PAGE_UNTIL(page.heartbeat_ns > seen_ns); /* three seconds of it: no need to move all the while */
		test_pause();
	}
}

unsigned restoring_call(uint32_t (*command)(void))
{
	uint32_t epoch;
	unsigned nth;

	park_deep_surely();
	board_arm("cuCheckpointProcessRestore:HOLD:1");
	epoch = command();
	UNTIL(board_holds());
	nth = board_calls();
	board_disarm();
	CHECK_EQUAL(controller_reply(epoch).status, AFFINODE_OK);
	return nth;
}

/* Of that GPU, or of the only one that has a lock.  */
static const char *lock_path(const char *gpu)
{
	static char path[256];
	char pattern[128], *at;
	glob_t found;

	snprintf(pattern, sizeof(pattern), "%s", getenv("AFFINODE_SOCKET"));
	at = strrchr(pattern, '/');
	at += sprintf(at, "/gpu-");
	for (const char *digit = gpu ? gpu + 4 : "*"; *digit; digit++)
		if (*digit != '-')
			*at++ = *digit;
	strcpy(at, ".lock");
	CHECK_EQUAL(glob(pattern, 0, NULL, &found), 0);
	CHECK_EQUAL(found.gl_pathc, 1);
	snprintf(path, sizeof(path), "%s", found.gl_pathv[0]);
	globfree(&found);
	return path;
}

/* -1: another process has it.  */
static int try_lock(const char *gpu)
{
	int fd = open(lock_path(gpu), O_RDONLY | O_CLOEXEC);

	CHECK(fd >= 0);
	if (flock(fd, LOCK_EX | LOCK_NB) == 0)
		return fd;
	CHECK_EQUAL(errno, EWOULDBLOCK);
	close(fd);
	return -1;
}

int gpu_lock_take(const char *gpu)
{
	int fd = try_lock(gpu);

	CHECK(fd >= 0);
	return fd;
}

bool gpu_lock_is_taken(const char *gpu)
{
	int fd = try_lock(gpu);

	if (fd >= 0)
		close(fd);
	return fd < 0;
}

void gpu_lock_replace(void)
{
	const char *path = lock_path(NULL);
	int fd;

	CHECK_EQUAL(unlink(path), 0);
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	close(fd);
}

void gpu_lock_leave(int fd)
{
	close(fd);
}
