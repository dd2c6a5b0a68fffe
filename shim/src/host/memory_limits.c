#define _GNU_SOURCE
#include "host/memory_limits.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/text_file.h"

#define MIB (1ull << 20)
#define PLENTY_BYTES (4096 * MIB)
#define MAX_LEVELS 32
#define MPOL_PREFERRED 1
#define UNLIMITED (1ull << 60)

static pthread_once_t cgroup_once = PTHREAD_ONCE_INIT;
static char cgroup_path[4096]; /* of this process in the v2 hierarchy, or in v1's memory one; "": none */
static char cgroup_top[64];
static bool cgroup_is_v2;

uint64_t machine_memory_left(void)
{
	unsigned long long kib;
	char text[1024], *line;

	if (text_read("/proc/meminfo", text, sizeof(text)) <= 0) /* for want of a descriptor: take none unseen */
		return errno == EMFILE || errno == ENFILE || errno == ENOMEM ? 0 : UINT64_MAX;
	line = strstr(text, "MemAvailable:");
	if (!line || sscanf(line, "MemAvailable: %llu", &kib) != 1)
		return UINT64_MAX;
	return kib << 10;
}

/* Find the process's control group under the usual mount points. Where they are others, the controller's look, which reads
 * mountinfo, has to suffice.  */
static void find_cgroup(void)
{
	char text[8192], *line, *rest = text;

	if (text_read("/proc/self/cgroup", text, sizeof(text)) <= 0)
		return;
	while ((line = strsep(&rest, "\n")) != NULL) {
		char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;

		if (!path)
			continue;
		*path++ = 0;
		controllers++;
		if (*controllers == 0 && !cgroup_path[0] && access("/sys/fs/cgroup/cgroup.controllers", F_OK) == 0) {
			cgroup_is_v2 = true;
			snprintf(cgroup_top, sizeof(cgroup_top), "/sys/fs/cgroup");
			snprintf(cgroup_path, sizeof(cgroup_path), "%s", path);
		} else if (strcmp(controllers, "memory") == 0) {
			cgroup_is_v2 = false;
			snprintf(cgroup_top, sizeof(cgroup_top), "/sys/fs/cgroup/memory");
			snprintf(cgroup_path, sizeof(cgroup_path), "%s", path);
		}
	}
}

/* Read a figure in a file of the group at `path`; UINT64_MAX if there is none, or no limit.  */
static uint64_t figure(const char *path, const char *name)
{
	char file[4400], text[64], *end;
	unsigned long long value;

	snprintf(file, sizeof(file), "%s%s/%s", cgroup_top, path, name);
	if (text_read(file, text, sizeof(text)) <= 0)
		return UINT64_MAX;
	value = strtoull(text, &end, 10);
	return end == text || value >= UNLIMITED ? UINT64_MAX : value;
}

/* Read the figure of a line of a memory.stat; 0 if there is no such line.  */
static uint64_t stat_line(const char *text, const char *name)
{
	const char *line = strstr(text, name);

	return line ? strtoull(line + strlen(name), NULL, 10) : 0;
}

/* Return what the group would drop before it ran short. It counts as free, as the kernel counts it for the machine and the
 * controller for the group (node/system/host_memory.py).  */
static uint64_t file_cache(const char *path)
{
	char file[4400], text[8192];

	snprintf(file, sizeof(file), "%s%s/memory.stat", cgroup_top, path);
	if (text_read(file, text, sizeof(text)) <= 0)
		return 0;
	if (cgroup_is_v2)
		return stat_line(text, "\ninactive_file ") + stat_line(text, "\nactive_file ") +
		       stat_line(text, "\nslab_reclaimable ");
	return stat_line(text, "\ntotal_inactive_file ") + stat_line(text, "\ntotal_active_file ");
}

static uint64_t headroom_at(const char *path)
{
	uint64_t limit = figure(path, cgroup_is_v2 ? "memory.max" : "memory.limit_in_bytes");
	uint64_t high = cgroup_is_v2 ? figure(path, "memory.high") : UINT64_MAX;
	uint64_t used;

	limit = high < limit ? high : limit;
	if (limit == UINT64_MAX)
		return UINT64_MAX;
	used = figure(path, cgroup_is_v2 ? "memory.current" : "memory.usage_in_bytes");
	if (used == UINT64_MAX)
		return UINT64_MAX;
	/* Looking at the cache makes the kernel add up its counters, which takes milliseconds: only where it matters.  */
	if (limit < used || limit - used < PLENTY_BYTES)
		limit += file_cache(path);
	return limit > used ? limit - used : 0;
}

static uint64_t cgroup_headroom(void)
{
	uint64_t least = UINT64_MAX;
	char path[4096];

	pthread_once(&cgroup_once, find_cgroup);
	if (!cgroup_top[0])
		return UINT64_MAX;
	snprintf(path, sizeof(path), "%s", cgroup_path);
	for (int level = 0; level < MAX_LEVELS; level++) {
		uint64_t here = headroom_at(path);
		char *slash = strrchr(path, '/');

		least = here < least ? here : least;
		if (!slash)
			break;
		*slash = 0;
	}
	return least;
}

uint64_t host_memory_left(void)
{
	uint64_t machine = machine_memory_left(), groups = cgroup_headroom();

	return groups < machine ? groups : machine;
}

unsigned host_cpus(void)
{
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;

	return n > 0 ? (unsigned)n : 1;
}

void host_memory_prefer(void *base, uint64_t size, int node)
{
	unsigned long mask[16] = {0};

	if (node < 0 || node >= (int)(8 * sizeof(mask)))
		return;
	mask[node / (8 * sizeof(mask[0]))] |= 1ul << node % (8 * sizeof(mask[0]));
	syscall(SYS_mbind, base, size, MPOL_PREFERRED, mask, 8 * sizeof(mask) + 1, 0);
}
