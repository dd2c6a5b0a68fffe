/* One sparse file that only grows: offsets are not reused, pages are given back by punching holes. So thousands of
 * allocations cost one descriptor, and a mapping can be made twice.  */
#include "memory/memfile.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1u
#endif
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int file = -1;
static uint64_t file_end;

int memfile_create(uint64_t size)
{
	/* Not memfd_create(): glibc has it since 2.27 only.  */
	int fd = (int)syscall(SYS_memfd_create, "affinode-sim-gpu", MFD_CLOEXEC);

	if (fd >= 0 && ftruncate(fd, (off_t)size) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

uint64_t memfile_take(uint64_t size)
{
	uint64_t offset = MEMFILE_NONE;

	pthread_mutex_lock(&lock);
	if (file < 0)
		file = memfile_create(0);
	if (file >= 0 && ftruncate(file, (off_t)(file_end + size)) == 0) {
		offset = file_end;
		file_end += size;
	}
	pthread_mutex_unlock(&lock);
	return offset;
}

void memfile_drop(uint64_t offset, uint64_t size)
{
	while (fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)size) < 0 &&
	       errno == EINTR)
		;
}

bool file_is_blank(int fd, uint64_t offset, uint64_t size)
{
	off_t data = lseek(fd, (off_t)offset, SEEK_DATA);

	return data < 0 ? errno == ENXIO : (uint64_t)data >= offset + size;
}

int memfile_fd(void)
{
	return file;
}

void memfile_forget(void)
{
	if (file >= 0)
		close(file);
	file = -1;
}

uint64_t address_reserve(uint64_t size, uint64_t alignment, uint64_t hint)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	uint64_t start, aligned;
	void *place;

	if (hint && hint % alignment == 0) {
		place = mmap((void *)hint, size, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
		if (place == (void *)hint)
			return hint;
		if (place != MAP_FAILED) /* a kernel before 4.17 takes the flag for a hint */
			munmap(place, size);
	}
	place = mmap(NULL, size + alignment, PROT_NONE, flags, -1, 0);
	if (place == MAP_FAILED)
		return 0;
	start = (uint64_t)place;
	aligned = (start + alignment - 1) / alignment * alignment;
	if (aligned > start)
		munmap(place, aligned - start);
	if (start + alignment > aligned)
		munmap((void *)(aligned + size), start + alignment - aligned);
	return aligned;
}

void address_release(uint64_t address, uint64_t size)
{
	munmap((void *)address, size);
}

int address_map(uint64_t address, uint64_t size, int fd, uint64_t offset)
{
	if (mmap((void *)address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)offset) ==
	    MAP_FAILED)
		return -1;
	madvise((void *)address, size, MADV_DONTFORK); /* no child ever sees device memory */
	madvise((void *)address, size, MADV_DONTDUMP);
	return 0;
}

int address_unmap(uint64_t address, uint64_t size)
{
	return mmap((void *)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
		    0) == MAP_FAILED
		       ? -1
		       : 0;
}
