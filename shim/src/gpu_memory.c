#define _GNU_SOURCE
#include "gpu_memory.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "gpu_memory_exit.h"
#include "log.h"
#include "spawn.h"

#define PROGRAM "affinode-gpu-memory"
#define OURS "AFFINODE_"
#define SIMULATORS "AFFINODE_SIM"
/* A GPU that nobody uses may have to be woken for the first one.  */
#define FIRST_LOOK_NS (5 * S_NS)
#define UUID_TEXT 48

static char program[PATH_MAX];
static char **environment;

/* Beside the shim itself, not beside a link to it.  */
static bool find_program(void)
{
	char library[PATH_MAX], *slash;
	Dl_info found;

	if (!dladdr(&environment, &found) || !found.dli_fname || !realpath(found.dli_fname, library))
		return false;
	slash = strrchr(library, '/');
	if (!slash || (size_t)(slash - library) + sizeof("/" PROGRAM) > sizeof(program))
		return false;
	memcpy(program, library, (size_t)(slash - library));
	strcpy(program + (slash - library), "/" PROGRAM);
	return access(program, X_OK) == 0;
}

static bool begins(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

static bool is_passed_on(const char *variable)
{
	if (begins(variable, "LD_PRELOAD=") || begins(variable, "LD_AUDIT="))
		return false;
	return !begins(variable, OURS) || begins(variable, SIMULATORS);
}

/* A copy: the application may change its own at any time.  */
static bool copy_environment(void)
{
	size_t count = 0, kept = 0;

	while (environ && environ[count])
		count++;
	environment = calloc(count + 1, sizeof(*environment));
	if (!environment)
		return false;
	for (size_t i = 0; i < count && environ[i]; i++) {
		if (!is_passed_on(environ[i]))
			continue;
		environment[kept] = strdup(environ[i]);
		if (!environment[kept++])
			return false;
	}
	return true;
}

const char *gpu_memory_start(const struct device *device)
{
	struct gpu_memory memory;

	if (!find_program())
		return PROGRAM " is not beside the shim, or not executable";
	if (!copy_environment() || spawn_start() != 0)
		return "no memory for asking NVML";
	return gpu_memory_look(device, FIRST_LOOK_NS, &memory);
}

static void uuid_text(const struct device *device, char text[UUID_TEXT])
{
	int n = snprintf(text, UUID_TEXT, "GPU-");

	for (int i = 0; i < 16; i++)
		n += snprintf(text + n, UUID_TEXT - (size_t)n, "%s%02x",
			      i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", device->uuid[i]);
}

/* The number at *text, and after it the character `end`; then *text is behind that.  */
static bool take_number(const char **text, char end, uint64_t *number)
{
	const char *at = *text;

	for (*number = 0; *at >= '0' && *at <= '9'; at++) {
		if (*number > (UINT64_MAX - 9) / 10)
			return false;
		*number = *number * 10 + (uint64_t)(*at - '0');
	}
	if (at == *text || *at != end)
		return false;
	*text = at + 1;
	return true;
}

static bool take_line(const struct printed *printed, struct gpu_memory *memory)
{
	const char *at = printed->text;
	uint64_t processes, divided;

	if (!take_number(&at, ' ', &memory->total_bytes) || !take_number(&at, ' ', &memory->free_bytes) ||
	    !take_number(&at, ' ', &memory->used_bytes) || !take_number(&at, ' ', &processes) ||
	    !take_number(&at, ' ', &memory->own_bytes) || !take_number(&at, '\n', &divided))
		return false;
	memory->processes = (unsigned)processes;
	memory->divided = divided != 0;
	return at == printed->text + printed->length && divided <= 1 && processes <= UINT32_MAX && memory->total_bytes &&
	       memory->free_bytes <= memory->total_bytes && memory->used_bytes <= memory->total_bytes;
}

static const char *why_it_ended(int status)
{
	switch (status) {
	case GPU_MEMORY_NO_LIBRARY:
		return "NVML (libnvidia-ml.so.1) is not here";
	case GPU_MEMORY_NO_NVML:
		return "NVML does not work here";
	case GPU_MEMORY_NO_GPU:
		return "NVML does not know this GPU";
	case GPU_MEMORY_NO_FIGURES:
		return "NVML does not know this GPU's free memory";
	default:
		return PROGRAM " failed";
	}
}

static const char *why_not_run(int error)
{
	switch (error) {
	case -ENOENT:
	case -EACCES:
	case -EPERM:
	case -ENOEXEC:
		return PROGRAM " cannot be run";
	case -ETIMEDOUT:
		return "NVML does not say in time how much memory is free";
	case -EMSGSIZE:
		return PROGRAM " said something else";
	case -ECHILD:
		return PROGRAM " was killed";
	default:
		return "no process can be started to ask NVML";
	}
}

const char *gpu_memory_look(const struct device *device, uint64_t ns, struct gpu_memory *memory)
{
	char uuid[UUID_TEXT], pid[16];
	char *const arguments[] = {(char *)PROGRAM, uuid, pid, NULL};
	const struct command command = {program, arguments, environment};
	struct printed printed;
	int error;

	memset(memory, 0, sizeof(*memory));
	uuid_text(device, uuid);
	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	error = spawn_run(&command, ns, &printed);
	if (error) {
		log_line(PROGRAM ": error %d", error);
		return why_not_run(error);
	}
	if (printed.status != GPU_MEMORY_SAID)
		return why_it_ended(printed.status);
	return take_line(&printed, memory) ? NULL : PROGRAM " said something else";
}
