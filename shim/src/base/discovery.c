#define _GNU_SOURCE
#include "base/discovery.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/environment.h"

#define NODE_FOLDER "/run/affinode"

#define PLACES 3

/* Copy the folder of AFFINODE_SOCKET's file.  */
static int folder_of(char *folder, size_t size, const char *socket)
{
	const char *slash = strrchr(socket, '/');

	if (socket[0] != '/' || !slash || (size_t)(slash - socket) >= size)
		return -EINVAL;
	memcpy(folder, socket, (size_t)(slash - socket));
	folder[slash - socket] = 0;
	return 0;
}

/* Return 0 if the folder is this user's and no other user may enter it, else a negative errno: another user could put a socket
 * there.  */
static int check_private(const char *folder)
{
	struct stat st;

	/* The system call itself: glibc's lstat has no version as old as our floor.  */
	if (syscall(SYS_newfstatat, AT_FDCWD, folder, &st, AT_SYMLINK_NOFOLLOW) != 0)
		return -errno;
	return S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077) ? 0 : -EPERM;
}

/* Copy the folder that the provisioner found, which is not in /tmp where no private folder could be made there.  */
static int named_folder(char *folder, size_t size)
{
	const char *named = environment_noted(AFFINODE_ENV_FOLDER);

	if (!named || named[0] != '/')
		return -ENOENT;
	if (strlen(named) >= size)
		return -ENAMETOOLONG;
	strcpy(folder, named);
	return check_private(folder);
}

static int usual_folder(char *folder, size_t size)
{
	int n = snprintf(folder, size, "/tmp/affinode-%u", (unsigned)geteuid());

	return n > 0 && (size_t)n < size ? check_private(folder) : -ENAMETOOLONG;
}

int discovery_folder(unsigned place, char *folder, size_t size)
{
	const char *socket = environment_noted(AFFINODE_ENV_SOCKET);

	if (socket && socket[0])
		return place == 0 ? folder_of(folder, size, socket) : -ERANGE;
	if (place >= PLACES || size < sizeof(NODE_FOLDER))
		return -ERANGE;
	if (place == 1)
		return named_folder(folder, size);
	if (place == 2)
		return usual_folder(folder, size);
	memcpy(folder, NODE_FOLDER, sizeof(NODE_FOLDER));
	return 0;
}

/* Return whether a controller is being started for that folder: client/starting.py and supervisor.py hold a lock on this file,
 * mostly a shared one, until it listens.  */
static bool is_started_in(const char *folder)
{
	char path[256];
	bool is_held;
	int fd, n = snprintf(path, sizeof(path), "%s/starting.lock", folder);

	if (n < 0 || (size_t)n >= sizeof(path))
		return false;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return false;
	is_held = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
	close(fd);
	return is_held;
}

bool discovery_start_is_under_way(void)
{
	char folder[192];
	int error = 0;

	for (unsigned place = 0; error != -ERANGE; place++) {
		error = discovery_folder(place, folder, sizeof(folder));
		if (!error && is_started_in(folder))
			return true;
	}
	return false;
}

int discovery_lock_folder(char *folder, size_t size)
{
	const char *socket = environment_noted(AFFINODE_ENV_SOCKET);

	if (socket && socket[0])
		return folder_of(folder, size, socket);
	return named_folder(folder, size) == 0 ? 0 : usual_folder(folder, size);
}
