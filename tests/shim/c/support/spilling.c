#include "spilling.h"

#include <dirent.h>
#include <sys/stat.h>

char spill_folder[] = "/var/tmp/aff-spill-XXXXXX"; /* where /tmp may be memory */

static pid_t maker;

static void remove_folder(void)
{
	if (getpid() == maker)
		rmdir(spill_folder);
}

void spilling_begin(void)
{
	CHECK(mkdtemp(spill_folder) != NULL);
	maker = getpid();
	atexit(remove_folder);
}

int spill_descriptor(void)
{
	DIR *numbers = opendir("/proc/self/fd");
	struct dirent *entry;
	int found = -1;

	CHECK(numbers != NULL);
	while ((entry = readdir(numbers)) != NULL) {
		char target[256];
		ssize_t n = readlinkat(dirfd(numbers), entry->d_name, target, sizeof(target) - 1);

		if (n <= 0)
			continue;
		target[n] = 0;
		if (!strncmp(target, spill_folder, strlen(spill_folder)))
			found = atoi(entry->d_name);
	}
	closedir(numbers);
	return found;
}

unsigned spill_names(void)
{
	DIR *folder = opendir(spill_folder);
	struct dirent *entry;
	unsigned names = 0;

	CHECK(folder != NULL);
	while ((entry = readdir(folder)) != NULL)
		names += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
	closedir(folder);
	return names;
}

struct affinode_reply spill_all(void)
{
	return controller_reply(controller_spill(ALL, spill_folder));
}

void park_to_disk(void)
{
	struct affinode_reply reply;

	controller_park();
	reply = spill_all();
	if (reply.status != AFFINODE_OK && reply.status != AFFINODE_NOTHING)
		test_fail(__FILE__, __LINE__, reply.text, reply.status);
	CHECK_EQUAL(page_read().copy_bytes, 0);
}
