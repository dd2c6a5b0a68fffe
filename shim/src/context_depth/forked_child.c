/* A child that was forked from a process with CUDA has the driver's devices open and mapped, as a DataLoader's workers have.
 * It can do nothing with them: CUDA's calls fail there. But a process with devices cannot be written to an image. So
 * /dev/null takes the place of the files, memory of its own that of the mappings: neither moves, so that
 * what the driver's own handlers still do with them harms nothing.
 *
 * Right after a fork other threads' locks may be held for ever: only system calls here, no allocation.  */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "context_depth/internal.h"

#define DEVICES "/dev/nvidia"

struct entry { /* as getdents64 writes it */
	uint64_t inode;
	int64_t offset;
	unsigned short length;
	unsigned char type;
	char name[];
};

/* "START-END rwxp OFFSET MAJOR:MINOR INODE  PATH"  */
static void replace_mapping(const char *line)
{
	const char *path = strchr(line, '/');
	char *rest;
	uintptr_t start, end;

	if (!path || strncmp(path, DEVICES, strlen(DEVICES)))
		return;
	start = strtoul(line, &rest, 16);
	end = strtoul(rest + 1, &rest, 16);
	if (mmap((void *)start, end - start, rest[1] == 'r' ? PROT_READ | PROT_WRITE : PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
		log_line("a child keeps a device mapped: %s", path);
}

static void replace_mappings(void)
{
	char text[8192];
	size_t held = 0;
	ssize_t more;
	int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);

	if (maps < 0)
		return;
	while ((more = read(maps, text + held, sizeof(text) - 1 - held)) > 0) {
		char *line = text, *end;

		held += (size_t)more;
		text[held] = '\0';
		for (; (end = strchr(line, '\n')); line = end + 1) {
			*end = '\0';
			replace_mapping(line);
		}
		held -= (size_t)(line - text);
		memmove(text, line, held);
	}
	close(maps);
}

static void replace_file(int folder, int nothing, const char *name)
{
	char path[sizeof(DEVICES)];

	if (readlinkat(folder, name, path, sizeof(path)) < (ssize_t)strlen(DEVICES) ||
	    strncmp(path, DEVICES, strlen(DEVICES)))
		return;
	dup3(nothing, atoi(name), O_CLOEXEC);
}

static void replace_files(void)
{
	_Alignas(struct entry) char text[4096];
	int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
	int folder = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	long size;

	while (nothing >= 0 && folder >= 0 && (size = syscall(SYS_getdents64, folder, text, sizeof(text))) > 0)
		for (long at = 0; at < size; at += ((struct entry *)(text + at))->length)
			replace_file(folder, nothing, ((struct entry *)(text + at))->name);
	if (folder >= 0)
		close(folder);
	if (nothing >= 0)
		close(nothing);
}

void devices_let_go(void)
{
	replace_mappings();
	replace_files();
}
