#include "depth.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>

#include <glob.h>

/* The pipes' numbers in the neighbour.  */
#define FROM 3
#define TO 4

static int (*nvml_memory)(void *, unsigned long long *);
static int (*nvml_processes)(void *, unsigned int *, void *);
static void *nvml_device;

void depth_ask(void)
{
	setenv("AFFINODE_DEPTH", "context", 1);
}

static void nvml_start(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	int (*init)(void), (*by_index)(unsigned int, void **);

	if (nvml_device)
		return;
	CHECK(library != NULL);
	*(void **)&init = dlsym(library, "nvmlInit_v2");
	*(void **)&by_index = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&nvml_memory = dlsym(library, "nvmlDeviceGetMemoryInfo");
	*(void **)&nvml_processes = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
	CHECK(init && by_index && nvml_memory && nvml_processes);
	CHECK_EQUAL(init(), 0);
	CHECK_EQUAL(by_index(0, &nvml_device), 0);
}

uint64_t gpu_used_bytes(void)
{
	unsigned long long memory[3]; /* total, free, used */

	nvml_start();
	CHECK_EQUAL(nvml_memory(nvml_device, memory), 0);
	return memory[2];
}

unsigned gpu_processes(void)
{
	char list[64 * 24];
	unsigned int count = 64;

	nvml_start();
	CHECK_EQUAL(nvml_processes(nvml_device, &count, list), 0);
	return count;
}

struct affinode_reply park_deep(void)
{
	return controller_reply(controller_command(AFFINODE_COMMAND_PARK, AFFINODE_MOVE_CONTEXT));
}

void park_deep_surely(void)
{
	for (;;) {
		struct affinode_reply reply = park_deep();

		if (reply.status == AFFINODE_OK && page_read().depth == AFFINODE_DEPTH_CONTEXT)
			return;
		if (reply.status == AFFINODE_OK) {
			if (!strstr(reply.text, "just begun") && !strstr(reply.text, "waits") &&
			    !strstr(reply.text, "in progress"))
				test_fail(__FILE__, __LINE__, reply.text, 0);
			CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_OK);
		}
		test_pause();
	}
}

int gpu_lock_take(void)
{
	char pattern[128];
	glob_t found;
	int fd;

	snprintf(pattern, sizeof(pattern), "%s", getenv("AFFINODE_SOCKET"));
	snprintf(strrchr(pattern, '/'), 16, "/gpu-*.lock");
	CHECK_EQUAL(glob(pattern, 0, NULL, &found), 0);
	CHECK_EQUAL(found.gl_pathc, 1);
	fd = open(found.gl_pathv[0], O_RDONLY | O_CLOEXEC);
	globfree(&found);
	CHECK(fd >= 0);
	if (flock(fd, LOCK_EX | LOCK_NB) == 0)
		return fd;
	CHECK_EQUAL(errno, EWOULDBLOCK);
	close(fd);
	return -1;
}

void gpu_lock_leave(int fd)
{
	close(fd);
}

void neighbour_main(void)
{
	size_t free_bytes, total, spare = strtoull(getenv("TEST_SPARE"), NULL, 0);
	CUdeviceptr at;
	char byte;

	cuda_start();
	CUDA(MemGetInfo(&free_bytes, &total));
	CUDA(MemAlloc(&at, (free_bytes - spare) / MiB(2) * MiB(2)));
	CHECK_EQUAL(write(TO, "+", 1), 1);
	CHECK(read(FROM, &byte, 1) >= 0);
}

struct neighbour neighbour_start(uint64_t spare)
{
	struct neighbour neighbour;
	int down[2], up[2];
	char text[32], byte;

	CHECK_EQUAL(pipe(down), 0);
	CHECK_EQUAL(pipe(up), 0);
	snprintf(text, sizeof(text), "%llu", (unsigned long long)spare);
	setenv("TEST_SPARE", text, 1);
	setenv("AFFINODE_DISABLE", "1", 1);
	neighbour.pid = fork();
	CHECK(neighbour.pid >= 0);
	if (neighbour.pid == 0) {
		dup2(down[0], FROM);
		dup2(up[1], TO);
		for (int fd = TO + 1; fd < 64; fd++)
			close(fd);
		execl("/proc/self/exe", "neighbour", "neighbour", (char *)NULL);
		_exit(127);
	}
	unsetenv("AFFINODE_DISABLE");
	close(down[0]);
	close(up[1]);
	CHECK_EQUAL(read(up[0], &byte, 1), 1);
	close(up[0]);
	neighbour.to = down[1];
	return neighbour;
}

void neighbour_end(struct neighbour neighbour)
{
	close(neighbour.to);
	CHECK_EQUAL(child_wait(neighbour.pid), 0);
}
