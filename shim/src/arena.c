#define _GNU_SOURCE
#include "arena.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define STEP_BYTES (256ull << 20)
/* Below this, the machine is better off with the memory than we are with a parked kernel; the controller keeps a larger
 * reserve, this is the last line, looked at as the memory is taken.  */
#define LEAVE_BYTES (256ull << 20)
#define PAGE_BYTES 4096

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

int arena_map(struct arena *arena, size_t size)
{
	void *base;

	memset(arena, 0, sizeof(*arena));
	base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED)
		return -errno;
	arena->base = base;
	arena->size = size;
	/* Before it is touched: a fork that had to copy page tables of pinned gigabytes took 19 s.  */
	madvise(base, size, MADV_DONTFORK);
	madvise(base, size, MADV_DONTDUMP);
	madvise(base, size, MADV_HUGEPAGE);
	return 0;
}

/* MemAvailable in bytes; SIZE_MAX where it cannot be read.  */
static size_t memory_available(void)
{
	char text[1024], *line;
	unsigned long long kib;
	ssize_t n;
	int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return (size_t)-1;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return (size_t)-1;
	text[n] = 0;
	line = strstr(text, "MemAvailable:");
	if (!line || sscanf(line, "MemAvailable: %llu", &kib) != 1)
		return (size_t)-1;
	return (size_t)kib << 10;
}

static int touch_step(unsigned char *from, size_t size)
{
	if (madvise(from, size, MADV_POPULATE_WRITE) == 0)
		return 0;
	if (errno == ENOMEM || errno == EHWPOISON)
		return -ENOMEM;
	/* Before Linux 5.14.  */
	for (size_t i = 0; i < size; i += PAGE_BYTES)
		((volatile unsigned char *)from)[i] = 0;
	return 0;
}

int arena_touch(struct arena *arena, size_t size, bool (*stop)(void))
{
	if (size > arena->size)
		return -ENOMEM;
	while (arena->touched < size) {
		size_t step = size - arena->touched < STEP_BYTES ? size - arena->touched : STEP_BYTES;
		size_t available = memory_available();
		int error;

		if (stop())
			return -EAGAIN;
		if (available < LEAVE_BYTES || available - LEAVE_BYTES < step)
			return -ENOMEM;
		error = touch_step(arena->base + arena->touched, step);
		if (error)
			return error;
		arena->touched += step;
	}
	return 0;
}

unsigned char *arena_take(struct arena *arena, size_t size)
{
	unsigned char *at = arena->base + arena->used;

	if (size > arena->size - arena->used)
		return NULL;
	arena->used += size;
	return at;
}

void arena_unmap(struct arena *arena)
{
	if (arena->base)
		munmap(arena->base, arena->size);
	memset(arena, 0, sizeof(*arena));
}
