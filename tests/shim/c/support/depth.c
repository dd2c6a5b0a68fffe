#include "depth.h"

#include "board.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
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

const char *gpu_uuid(void)
{
	const struct affinode_page page = page_read();
	static char text[48];

	snprintf(text, sizeof(text), "GPU-");
	for (int i = 0; i < 16; i++)
		sprintf(strchr(text, '\0'), "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
			page.gpus[0].uuid[i]);
	return text;
}

/* By a process of its own, as the shim does: the driver may hold ours. Not by the shim's code, which is what is tested.  */
static void ask_nvml(unsigned long long *used, unsigned *processes)
{
	unsigned long long total, free_bytes, own;
	char command[PATH_MAX + 96];
	int divided;
	FILE *said;
	ssize_t length = readlink("/proc/self/exe", command, PATH_MAX - 1);

	CHECK(length > 0);
	command[length] = '\0';
	snprintf(strrchr(command, '/'), 96, "/affinode-gpu-memory %s 1", gpu_uuid());
	said = popen(command, "re");
	CHECK(said != NULL);
	CHECK_EQUAL(fscanf(said, "%llu %llu %llu %u %llu %d", &total, &free_bytes, used, processes, &own, &divided), 6);
	CHECK_EQUAL(pclose(said), 0);
}

uint64_t gpu_used_bytes(void)
{
	unsigned long long used;
	unsigned processes;

	ask_nvml(&used, &processes);
	return used;
}

unsigned gpu_processes(void)
{
	unsigned long long used;
	unsigned processes;

	ask_nvml(&used, &processes);
	return processes;
}

struct affinode_reply park_deep(void)
{
	return controller_reply(controller_command(AFFINODE_COMMAND_PARK, AFFINODE_MOVE_CONTEXT));
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
			    !strstr(reply.text, "in progress"))
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

static const char *lock_path(void)
{
	static char path[256];
	char pattern[128];
	glob_t found;

	snprintf(pattern, sizeof(pattern), "%s", getenv("AFFINODE_SOCKET"));
	snprintf(strrchr(pattern, '/'), 16, "/gpu-*.lock");
	CHECK_EQUAL(glob(pattern, 0, NULL, &found), 0);
	CHECK_EQUAL(found.gl_pathc, 1);
	snprintf(path, sizeof(path), "%s", found.gl_pathv[0]);
	globfree(&found);
	return path;
}

int gpu_lock_take(void)
{
	int fd = open(lock_path(), O_RDONLY | O_CLOEXEC);

	CHECK(fd >= 0);
	if (flock(fd, LOCK_EX | LOCK_NB) == 0)
		return fd;
	CHECK_EQUAL(errno, EWOULDBLOCK);
	close(fd);
	return -1;
}

void gpu_lock_replace(void)
{
	const char *path = lock_path();
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
