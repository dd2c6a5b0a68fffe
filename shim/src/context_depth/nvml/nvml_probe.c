#define _GNU_SOURCE
#include "context_depth/nvml/nvml_probe.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/monotonic_futex.h"
#include "context_depth/nvml/hidden_child.h"
#include "context_depth/nvml/nvml_probe_exit.h"

#define PROGRAM "affinode-gpu-memory"
#define OURS "AFFINODE_"
#define SIMULATORS "AFFINODE_SIM"
/* A GPU that no process uses may have to be woken for the first one.  */
#define FIRST_LOOK_NS (5 * S_NS)
#define LINE_TEXT 256
#define ALL_TEXT (GPUS_LISTED * 256)

static char program[PATH_MAX];
static char **environment;

/* Find the program beside the shim itself, not beside a link to it. Return 0 or a negative errno.  */
static int find_program(void)
{
	char library[PATH_MAX], *slash;
	Dl_info found;

	if (!dladdr(&environment, &found) || !found.dli_fname || !realpath(found.dli_fname, library))
		return -ENOENT;
	slash = strrchr(library, '/');
	if (!slash || (size_t)(slash - library) + sizeof("/" PROGRAM) > sizeof(program))
		return -ENAMETOOLONG;
	memcpy(program, library, (size_t)(slash - library));
	strcpy(program + (slash - library), "/" PROGRAM);
	return access(program, X_OK) == 0 ? 0 : -errno;
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

/* Copy the environment, since the application may change its own at any time. Return 0 or -ENOMEM.  */
static int copy_environment(void)
{
	size_t count = 0, kept = 0;

	while (environ && environ[count])
		count++;
	environment = calloc(count + 1, sizeof(*environment));
	if (!environment)
		return -ENOMEM;
	for (size_t i = 0; i < count && environ[i]; i++) {
		if (!is_passed_on(environ[i]))
			continue;
		environment[kept] = strdup(environ[i]);
		if (!environment[kept++])
			return -ENOMEM;
	}
	return 0;
}

enum reason gpu_memory_start(const uint8_t gpu[16])
{
	struct gpu_memory memory;

	if (find_program() != 0)
		return REASON_PROBE_NOT_FOUND;
	if (copy_environment() != 0 || spawn_start() != 0)
		return REASON_NVML_NO_MEMORY;
	return gpu_memory_ask(gpu, FIRST_LOOK_NS, &memory);
}

/* Read a number at *text that the character `end` follows, and move *text behind that. Return false if there is none.  */
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

/* Read the six numbers at *text that the character `end` follows, and move *text behind that. Return false if they are not
 * there.  */
static bool take_figures(const char **text, char end, struct gpu_memory *memory)
{
	uint64_t processes, divided;

	memset(memory, 0, sizeof(*memory));
	if (!take_number(text, ' ', &memory->total_bytes) || !take_number(text, ' ', &memory->free_bytes) ||
	    !take_number(text, ' ', &memory->used_bytes) || !take_number(text, ' ', &processes) ||
	    !take_number(text, ' ', &memory->own_bytes) || !take_number(text, end, &divided))
		return false;
	memory->processes = (unsigned)processes;
	memory->divided = divided != 0;
	return divided <= 1 && processes <= UINT32_MAX && memory->free_bytes <= memory->total_bytes &&
	       memory->used_bytes <= memory->total_bytes;
}

/* Read a word at *text that the character `end` follows, and move *text behind that. Return false if there is none.  */
static bool take_word(const char **text, char end, char *word, size_t size)
{
	const char *at = strchr(*text, end);
	size_t length = at ? (size_t)(at - *text) : 0;

	if (!length || length >= size)
		return false;
	memcpy(word, *text, length);
	word[length] = '\0';
	*text = at + 1;
	return true;
}

static bool take_listed(const char **text, struct gpu_listed *gpu)
{
	char uuid[GPU_UUID_TEXT];
	uint64_t shared;

	if (!take_figures(text, ' ', &gpu->memory) || !take_number(text, ' ', &shared) || shared > 1 ||
	    !take_word(text, ' ', uuid, sizeof(uuid)) || !gpu_uuid_read(uuid, gpu->uuid) ||
	    !take_word(text, ' ', gpu->pci_id, sizeof(gpu->pci_id)) ||
	    !take_word(text, '\n', gpu->name, sizeof(gpu->name)))
		return false;
	gpu->shared = shared != 0;
	return true;
}

static enum reason why_it_ended(int status)
{
	switch (status) {
	case GPU_MEMORY_NO_LIBRARY:
		return REASON_NVML_NOT_HERE;
	case GPU_MEMORY_NO_NVML:
		return REASON_NVML_BROKEN;
	case GPU_MEMORY_NO_GPU:
		return REASON_NVML_NO_GPU;
	case GPU_MEMORY_NO_FIGURES:
		return REASON_NVML_NO_FIGURES;
	default:
		return REASON_PROBE_FAILED;
	}
}

static enum reason why_not_run(int error)
{
	switch (error) {
	case -ENOENT:
	case -EACCES:
	case -EPERM:
	case -ENOEXEC:
		return REASON_PROBE_NOT_RUN;
	case -ETIMEDOUT:
		return REASON_NVML_SLOW;
	case -EMSGSIZE:
		return REASON_PROBE_MALFORMED;
	case -ECHILD:
		return REASON_PROBE_KILLED;
	default:
		return REASON_NVML_NO_PROCESS;
	}
}

/* Run the program for `which`. Return NO_REASON, or why there is no answer.  */
static enum reason ask(const char *which, uint64_t ns, struct printed *printed)
{
	char pid[16];
	char *const arguments[] = {(char *)PROGRAM, (char *)which, pid, NULL};
	const struct command command = {program, arguments, environment};
	int error;

	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	error = spawn_run(&command, ns, printed);
	if (error) {
		log_line(PROGRAM ": error %d", error);
		return why_not_run(error);
	}
	return printed->status == GPU_MEMORY_SAID ? NO_REASON : why_it_ended(printed->status);
}

enum reason gpu_memory_ask(const uint8_t gpu[16], uint64_t ns, struct gpu_memory *memory)
{
	char uuid[GPU_UUID_TEXT], text[LINE_TEXT];
	struct printed printed = {.text = text, .size = sizeof(text)};
	const char *at = text;
	enum reason why;

	memset(memory, 0, sizeof(*memory));
	gpu_uuid_text(gpu, uuid);
	why = ask(uuid, ns, &printed);
	if (why)
		return why;
	return take_figures(&at, '\n', memory) && at == text + printed.length && memory->total_bytes ? NO_REASON : REASON_PROBE_MALFORMED;
}

enum reason gpu_memory_list(uint64_t ns, struct gpu_listed gpus[GPUS_LISTED], unsigned *count)
{
	static char text[ALL_TEXT]; /* too large for a thread's stack */
	struct printed printed = {.text = text, .size = sizeof(text)};
	const char *at = text;
	enum reason why = ask("all", ns, &printed);

	*count = 0;
	while (!why && at < text + printed.length)
		if (*count == GPUS_LISTED || !take_listed(&at, &gpus[(*count)++]))
			why = REASON_PROBE_MALFORMED;
	return why;
}
