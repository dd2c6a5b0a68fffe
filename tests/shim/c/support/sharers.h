/* Sleepers that share what they have parked in host memory. Each has its link to the controller all the time. Included once.  */
#pragma once

#include "images.h"

struct sharer {
	struct sleeper sleeper;
	struct controller_aside *aside; /* NULL: the controller speaks to it */
};

#define NUMBER 0xabcdef0123456789u /* in the name of the user's folder */

static char shared[] = "/dev/shm/aff-share-XXXXXX", users[64];

static void remove_shared(void)
{
	if (getpid() == store_maker)
		run("rm -rf %s", shared);
}

static void shared_begin(void)
{
	store_begin();
	CHECK(mkdtemp(shared) != NULL);
	snprintf(users, sizeof(users), "%s/affinode-%u-%016llx", shared, (unsigned)geteuid(), (unsigned long long)NUMBER);
	atexit(remove_shared);
}

static struct sharer *spoken_to;

/* Speak to that one from now on; NULL: to a new one.  */
static void turn_to(struct sharer *sharer)
{
	if (spoken_to == sharer)
		return;
	if (spoken_to)
		spoken_to->aside = controller_put_aside();
	spoken_to = sharer;
	if (sharer)
		controller_take_again(sharer->aside);
}

static void sharer_start(struct sharer *sharer, const char *name)
{
	turn_to(NULL);
	sharer->sleeper = sleeper_start(name);
	spoken_to = sharer;
}

/* Its link ends, as it does.  */
static void forget_link(void)
{
	controller_drop();
	spoken_to = NULL;
}

static void sharer_kill(struct sharer *sharer)
{
	turn_to(sharer);
	kill(sharer->sleeper.pid, SIGKILL);
	child_wait(sharer->sleeper.pid);
	close(sharer->sleeper.talk);
	forget_link();
}

/* Park it, if it is not, and share; the chunks that others may find now and could not before.  */
static uint64_t share(struct sharer *sharer)
{
	struct affinode_reply reply;

	turn_to(sharer);
	if (page_read().state != AFFINODE_STATE_PARKED)
		controller_park();
	reply = controller_reply(controller_share(shared, NUMBER));
	if (reply.status != AFFINODE_OK)
		test_fail(__FILE__, __LINE__, reply.text, reply.status);
	return reply.bytes / CHUNK;
}

/* Back on the GPU all is right.  */
static void comes_back(struct sharer *sharer)
{
	turn_to(sharer);
	CHECK_RESUMES();
	CHECK_EQUAL(tell(&sharer->sleeper, 'c', 0, 0), 'y');
}

/* Of packs in memory below the user's folder, each file once.  */
static struct packs packs_in_memory(void)
{
	struct packs packs = {0, 0, 0};
	DIR *folder = opendir(users);
	struct dirent *entry;
	char path[400];

	while (folder && (entry = readdir(folder)) != NULL) {
		DIR *own = entry->d_name[0] == '.' ? NULL : opendir((snprintf(path, sizeof(path), "%s/%s", users, entry->d_name), path));
		struct dirent *file;
		struct stat status;

		while (own && (file = readdir(own)) != NULL) {
			if (strncmp(file->d_name, "gpu-", 4) != 0)
				continue;
			CHECK_EQUAL(fstatat(dirfd(own), file->d_name, &status, AT_SYMLINK_NOFOLLOW), 0);
			packs.count++;
			packs.shared += status.st_nlink > 1;
			packs.bytes += (uint64_t)status.st_blocks * 512 / CHUNK * CHUNK / status.st_nlink;
		}
		if (own)
			closedir(own);
	}
	if (folder)
		closedir(folder);
	return packs;
}

static unsigned folders(void)
{
	DIR *folder = opendir(users);
	struct dirent *entry;
	unsigned count = 0;

	while (folder && (entry = readdir(folder)) != NULL)
		count += entry->d_name[0] != '.';
	if (folder)
		closedir(folder);
	return count;
}
