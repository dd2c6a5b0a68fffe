/* To be preloaded: setsockopt() as before Linux 6.16, which cannot refuse descriptors that are sent to a socket.  */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SO_PASSRIGHTS 83

int setsockopt(int fd, int level, int name, const void *value, socklen_t size)
{
	if (level == SOL_SOCKET && name == SO_PASSRIGHTS) {
		errno = ENOPROTOOPT;
		return -1;
	}
	return (int)syscall(SYS_setsockopt, fd, level, name, value, size);
}
