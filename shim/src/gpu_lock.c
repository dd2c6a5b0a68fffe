#include "gpu_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#include "contexts.h"
#include "discovery.h"

#define MAX_LOCKS 64

static int locks[MAX_LOCKS];
static int lock_count;

static int lock_file(const char *folder, const struct device *device)
{
	char path[4400];
	int n = snprintf(path, sizeof(path), "%s/gpu-", folder);

	for (int i = 0; i < 16 && n < (int)sizeof(path) - 8; i++)
		n += snprintf(path + n, sizeof(path) - (size_t)n, "%02x", device->uuid[i]);
	snprintf(path + n, sizeof(path) - (size_t)n, ".lock");
	return open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
}

bool gpu_lock_all(void)
{
	char folder[4096];

	lock_count = 0;
	if (discovery_folder(folder, sizeof(folder)) != 0)
		return true;
	for (int i = 0; i < device_count_known() && i < MAX_LOCKS; i++) {
		int fd = lock_file(folder, device_at(i));

		if (fd < 0)
			continue;
		if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
			close(fd);
			gpu_unlock_all();
			return false;
		}
		locks[lock_count++] = fd;
	}
	return true;
}

void gpu_unlock_all(void)
{
	while (lock_count > 0)
		close(locks[--lock_count]);
}
