#include "gpu/lock_holder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool is_stopped(pid_t pid)
{
	char path[32], text[256], *state;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[n > 0 ? n : 0] = 0;
	state = strrchr(text, ')'); /* the command may have any character in it */
	return state && state[1] == ' ' && strchr("TtZX", state[2]) && state[2];
}

struct holder holder_of(int fd)
{
	FILE *list = fopen("/proc/locks", "re");
	struct holder holder = {0};
	unsigned long inode;
	struct stat file;
	char line[160];
	int pid;

	if (!list || syscall(SYS_fstat, fd, &file) != 0)
		file.st_ino = 0;
	while (list && !holder.pid && fgets(line, sizeof(line), list))
		if (sscanf(line, "%*d: FLOCK ADVISORY WRITE %d %*x:%*x:%lu", &pid, &inode) == 2 && inode == file.st_ino)
			holder.pid = pid;
	if (list)
		fclose(list);
	holder.stopped = holder.pid > 0 && is_stopped(holder.pid);
	return holder;
}
