/* Preloaded into every process under chaos: a disk on which nothing can be written, or read, for a while.
 *
 * The file CHAOS_DISK holds two numbers of 32 bits: the errno of writing and that of reading; 0: all is well. What the shim keeps
 * on disk has a high descriptor (spill_file.c), and no other file is meant.  */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DESCRIPTOR_FROM 512
#define HALF_WRITTEN (1 << 20)

struct errors {
	int32_t writing, reading;
};

static const struct errors none;
static const volatile struct errors *errors = &none;

__attribute__((constructor)) static void map_errors(void)
{
	const char *path = getenv("CHAOS_DISK");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *mapped;

	if (fd < 0)
		return;
	mapped = mmap(NULL, sizeof(none), PROT_READ, MAP_SHARED, fd, 0);
	if (mapped != MAP_FAILED)
		errors = mapped;
	close(fd);
}

/* A disk that is full takes a part of the first chunk.  */
ssize_t pwrite(int fd, const void *from, size_t bytes, off_t at)
{
	int error = fd >= DESCRIPTOR_FROM ? errors->writing : 0;

	if (error == ENOSPC && bytes > HALF_WRITTEN)
		bytes = HALF_WRITTEN;
	else if (error) {
		errno = error;
		return -1;
	}
	return syscall(SYS_pwrite64, fd, from, bytes, at);
}

ssize_t pread(int fd, void *to, size_t bytes, off_t at)
{
	int error = fd >= DESCRIPTOR_FROM ? errors->reading : 0;

	if (error) {
		errno = error;
		return -1;
	}
	return syscall(SYS_pread64, fd, to, bytes, at);
}
