#define _GNU_SOURCE
#include "discovery.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "environment.h"

#define NODE_FOLDER "/run/affinode"

static int print(char *folder, size_t size, const char *format, const char *value)
{
	int n = snprintf(folder, size, format, value);

	return n > 0 && (size_t)n < size ? 0 : -ENAMETOOLONG;
}

/* The folder of AFFINODE_SOCKET's file.  */
static int folder_of(char *folder, size_t size, const char *socket)
{
	const char *slash = strrchr(socket, '/');

	if (socket[0] != '/' || !slash || (size_t)(slash - socket) >= size)
		return -EINVAL;
	memcpy(folder, socket, (size_t)(slash - socket));
	folder[slash - socket] = 0;
	return 0;
}

/* In a folder that anyone may write to, only one that is ours and ours alone will do.  */
static int temporary_folder(char *folder, size_t size)
{
	const char *tmp = environment_noted("TMPDIR");
	struct stat st;
	int n = snprintf(folder, size, "%s/affinode-%u", tmp && tmp[0] == '/' ? tmp : "/tmp", (unsigned)geteuid());

	if (n <= 0 || (size_t)n >= size)
		return -ENAMETOOLONG;
	/* The system call itself: glibc's lstat has no version as old as our floor.  */
	if (syscall(SYS_newfstatat, AT_FDCWD, folder, &st, AT_SYMLINK_NOFOLLOW) != 0)
		return -errno;
	if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077))
		return -EPERM;
	return 0;
}

int discovery_folder(char *folder, size_t size)
{
	const char *socket = environment_noted(AFFINODE_ENV_SOCKET);
	const char *runtime = environment_noted("XDG_RUNTIME_DIR");

	if (socket && socket[0])
		return folder_of(folder, size, socket);
	if (access(NODE_FOLDER "/node.sock", F_OK) == 0)
		return print(folder, size, "%s", NODE_FOLDER);
	if (runtime && runtime[0] == '/')
		return print(folder, size, "%s/affinode", runtime);
	return temporary_folder(folder, size);
}
