/* Small files, such as those of /proc and /sys.  */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

/* The beginning of a file, with a NUL behind it: its bytes, or -1 where it cannot be read, and errno says why. Nothing but the NUL
 * is in `text` then.  */
static inline ssize_t text_read(const char *path, char *text, size_t size)
{
	int error, fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, text, size - 1) : -1;

	error = errno;
	if (fd >= 0)
		close(fd);
	errno = error;
	text[n > 0 ? n : 0] = 0;
	return n;
}
