#define _GNU_SOURCE
#include "host/packs/disk_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"

/* Out of the way of programs that close or reuse low numbers.  */
#define DESCRIPTOR_FROM 512

int disk_status(int descriptor, struct stat *status)
{
	return syscall(SYS_fstat, descriptor, status) == 0 ? 0 : -errno;
}

int disk_status_at(const char *path, struct stat *status)
{
	return syscall(SYS_newfstatat, AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW) == 0 ? 0 : -errno;
}

int disk_out_of_the_way(int descriptor)
{
	int high = fcntl(descriptor, F_DUPFD_CLOEXEC, DESCRIPTOR_FROM);

	if (high < 0)
		return descriptor;
	close(descriptor);
	return high;
}

int disk_open(struct disk_file *file, const char *path, int flags)
{
	int descriptor;

	flags |= O_CLOEXEC | O_NOFOLLOW;
	file->direct = true;
	descriptor = open(path, flags | O_DIRECT);
	if (descriptor < 0 && errno == EINVAL) {
		file->direct = false;
		descriptor = open(path, flags);
	}
	if (descriptor < 0)
		return -errno;
	file->descriptor = disk_out_of_the_way(descriptor);
	return 0;
}

/* Go on without O_DIRECT, and return whether that may help: not every memory can be handed to the disk, nor does every file
 * system know how.  */
static bool go_without_direct(struct disk_file *file, int error)
{
	int flags = fcntl(file->descriptor, F_GETFL);

	if ((error != EINVAL && error != EFAULT) || flags < 0 || !(flags & O_DIRECT))
		return false;
	log_line("disk: not past the system's cache: errno %d", error);
	file->direct = false;
	return fcntl(file->descriptor, F_SETFL, flags & ~O_DIRECT) == 0;
}

/* Write what is only in the system's cache to the disk, and drop it from the cache, where it takes host memory.  */
static int past_cache(const struct disk_file *file, off_t at, size_t bytes, bool written)
{
	if (file->direct)
		return 0;
	if (written && fdatasync(file->descriptor) != 0)
		return -errno;
	posix_fadvise(file->descriptor, at, (off_t)bytes, POSIX_FADV_DONTNEED);
	return 0;
}

int disk_read(struct disk_file *file, off_t at, void *to, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t n = pread(file->descriptor, (char *)to + done, bytes - done, at + (off_t)done);

		if (n > 0)
			done += (size_t)n;
		else if (n == 0)
			return -EIO;
		else if (errno != EINTR && !go_without_direct(file, errno))
			return -errno;
	}
	return past_cache(file, at, bytes, false);
}

int disk_write(struct disk_file *file, off_t at, const void *from, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t n = pwrite(file->descriptor, (const char *)from + done, bytes - done, at + (off_t)done);

		if (n > 0)
			done += (size_t)n;
		else if (n == 0)
			return -EIO;
		else if (errno != EINTR && !go_without_direct(file, errno))
			return -errno;
	}
	return past_cache(file, at, bytes, true);
}
