/* Reading the AFFINODE_SIM_* variables.  */
#include "machine/settings.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "machine/machine.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct sim_settings read_once;

uint64_t settings_bytes(const char *text, uint64_t otherwise)
{
	static const struct {
		const char *suffix;
		unsigned shift;
	} units[] = {{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
	char *end;
	double number;

	if (!text || !*text)
		return otherwise;
	number = strtod(text, &end);
	while (*end == ' ')
		end++;
	for (unsigned i = 0; end != text && number >= 0 && i < sizeof(units) / sizeof(*units); i++)
		if (!strcasecmp(end, units[i].suffix))
			return (uint64_t)(number * (double)(1ull << units[i].shift));
	return otherwise;
}

static uint64_t bytes_of(const char *name, uint64_t otherwise)
{
	return settings_bytes(getenv(name), otherwise);
}

static void read_settings(void)
{
	uint64_t gpus = bytes_of("AFFINODE_SIM_GPUS", 1);

	read_once.memory_bytes = bytes_of("AFFINODE_SIM_MEMORY", 4ull << 30) / SIM_GRANULARITY * SIM_GRANULARITY;
	read_once.context_bytes = bytes_of("AFFINODE_SIM_CONTEXT", 64ull << 20);
	read_once.copy_rate = bytes_of("AFFINODE_SIM_COPY_RATE", 0);
	read_once.serial = (unsigned)bytes_of("AFFINODE_SIM_SERIAL", 0);
	read_once.is_integrated = bytes_of("AFFINODE_SIM_INTEGRATED", 0) != 0;
	read_once.gpus = gpus > SIM_MAX_GPUS ? SIM_MAX_GPUS : (unsigned)gpus;
}

const struct sim_settings *settings(void)
{
	pthread_once(&once, read_settings);
	return &read_once;
}

static int make_folder(const char *path)
{
	return mkdir(path, 0700) < 0 && errno != EEXIST ? -errno : 0;
}

static int default_folder(char *folder, size_t size)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	struct stat status;
	int error;

	if (runtime && *runtime)
		return snprintf(folder, size, "%s/gpu-sim", runtime) < (int)size ? 0 : -ENAMETOOLONG;
	snprintf(folder, size, "/tmp/affinode-%u", (unsigned)getuid());
	error = make_folder(folder);
	if (error)
		return error;
	/* In a folder that any user may write to, another could have been first. Not lstat(): glibc 2.33
	 * re-versioned it.  */
	if (syscall(SYS_newfstatat, AT_FDCWD, folder, &status, AT_SYMLINK_NOFOLLOW) < 0 ||
	    !S_ISDIR(status.st_mode) || status.st_uid != getuid())
		return -EACCES;
	snprintf(folder, size, "/tmp/affinode-%u/gpu-sim", (unsigned)getuid());
	return 0;
}

int settings_folder(char *folder, size_t size)
{
	const char *given = getenv("AFFINODE_SIM_DIR");
	int error = 0;

	if (given && *given) {
		if (snprintf(folder, size, "%s", given) >= (int)size)
			return -ENAMETOOLONG;
	} else {
		error = default_folder(folder, size);
	}
	return error ? error : make_folder(folder);
}
