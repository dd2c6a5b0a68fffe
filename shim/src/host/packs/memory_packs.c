#define _GNU_SOURCE
#include "host/packs/memory_packs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/monotonic_futex.h"
#include "host/packs/disk_file.h"
#include "host/packs/shared_packs.h"
#include "host/packs/spill_internal.h"

#define LOOK_NS (500 * MS_NS)

/* A descriptor with a lock on a folder. A program may close it, and open another file under its number.  */
struct locked {
	int descriptor;
	dev_t device;
	ino_t inode; /* 0: there is none */
};

static OF_PROCESS struct locked own, users; /* the process's folder, and its user's while it shares */

static bool is_locked(const struct locked *locked)
{
	struct stat status;

	return locked->inode && disk_status(locked->descriptor, &status) == 0 && status.st_dev == locked->device &&
	       status.st_ino == locked->inode;
}

static void unlock(struct locked *locked)
{
	if (is_locked(locked))
		close(locked->descriptor);
	memset(locked, 0, sizeof(*locked));
}

/* Lock a folder that is this user's, and that no other may enter. Return 0 or a negative errno.  */
static int lock(int above, const char *name, struct locked *locked)
{
	int descriptor = openat(above, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW), error;
	struct stat status;

	if (descriptor < 0)
		return -errno;
	descriptor = disk_out_of_the_way(descriptor);
	error = disk_status(descriptor, &status);
	if (!error && (status.st_uid != geteuid() || status.st_mode & 077))
		error = -EPERM;
	if (!error && flock(descriptor, LOCK_EX | LOCK_NB) != 0)
		error = errno == EWOULDBLOCK ? -EBUSY : -errno;
	if (error)
		close(descriptor);
	else
		*locked = (struct locked){descriptor, status.st_dev, status.st_ino};
	return error;
}

/* Remove a folder with all files in it.  */
static void remove_folder(int above, const char *name)
{
	int descriptor = openat(above, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	DIR *folder = descriptor < 0 ? NULL : fdopendir(descriptor);
	struct dirent *entry;

	if (!folder && descriptor >= 0)
		close(descriptor);
	while (folder && (entry = readdir(folder)) != NULL)
		unlinkat(dirfd(folder), entry->d_name, 0);
	if (folder)
		closedir(folder);
	unlinkat(above, name, AT_REMOVEDIR);
}

/* Remove what ended processes have left. That of a process that is being made has no lock yet, but is made under the user's lock.  */
static void remove_left(void)
{
	int again = openat(users.descriptor, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *folder = again < 0 ? NULL : fdopendir(again);
	struct dirent *entry;
	struct locked left;

	if (!folder && again >= 0)
		close(again);
	while (folder && (entry = readdir(folder)) != NULL) {
		if (entry->d_name[0] == '.' || lock(users.descriptor, entry->d_name, &left) != 0)
			continue;
		remove_folder(users.descriptor, entry->d_name);
		unlock(&left);
	}
	if (folder)
		closedir(folder);
}

/* Return whether the process's folder is where it was, and locked.  */
static bool has_folder(void)
{
	struct stat status;

	return is_locked(&own) && disk_status_at(places.memory, &status) == 0 && status.st_dev == own.device && status.st_ino == own.inode;
}

/* Another folder may have been chosen since.  */
static bool is_below(const char *path)
{
	size_t length = strlen(path);

	return !strncmp(places.memory, path, length) && places.memory[length] == '/';
}

static int make_folder(const char *path)
{
	char name[64], whole[PACK_PATH_SIZE];
	unsigned long number;
	int error;

	if (syscall(SYS_getrandom, &number, sizeof(number), 0) != (long)sizeof(number))
		return -EIO;
	snprintf(name, sizeof(name), "%d-%016lx", (int)getpid(), number);
	if ((size_t)snprintf(whole, sizeof(whole), "%s/%s", path, name) >= sizeof(whole))
		return -ENAMETOOLONG;
	if (mkdirat(users.descriptor, name, 0700) != 0)
		return -errno;
	memory_packs_leave(); /* that below another folder, if there is one */
	error = lock(users.descriptor, name, &own);
	if (error) {
		unlinkat(users.descriptor, name, AT_REMOVEDIR);
		return error;
	}
	pthread_mutex_lock(&places.lock);
	memcpy(places.memory, whole, sizeof(places.memory));
	pthread_mutex_unlock(&places.lock);
	return 0;
}

/* Lock the user's folder below the one that was chosen, and make it where there is none.  */
static int lock_users(const char *folder, const char *name, char *why, size_t size)
{
	int chosen = chosen_folder_open(folder, true, why, size), error;

	if (chosen < 0)
		return chosen;
	mkdirat(chosen, name, 0700);
	error = lock(chosen, name, &users);
	if (error == -EBUSY)
		snprintf(why, size, "another process looks at what can be shared");
	else if (error)
		snprintf(why, size, "%.100s/%s cannot be used: %s", folder, name,
			 error == -EPERM ? "it is another user's, or others may enter it" : strerror(-error));
	close(chosen);
	return error == -EPERM || error == -ENOTDIR || error == -ELOOP || error == -EACCES ? -EEXIST : error;
}

int memory_packs_begin(const char *folder, uint64_t number, char *why, size_t size)
{
	char name[64], path[PACK_PATH_SIZE];
	int error;

	snprintf(name, sizeof(name), "affinode-%u-%016llx", (unsigned)geteuid(), (unsigned long long)number);
	if ((size_t)snprintf(path, sizeof(path), "%s/%s", folder, name) >= sizeof(path))
		return -ENAMETOOLONG;
	error = lock_users(folder, name, why, size);
	if (error)
		return error;
	remove_left();
	error = has_folder() && is_below(path) ? 0 : make_folder(path);
	if (error) {
		snprintf(why, size, "no folder can be made in %.100s: %s", path, strerror(-error));
		unlock(&users);
		return error;
	}
	places.to_memory = true;
	shared_packs_find(places.memory);
	places_look_again();
	return 0;
}

bool memory_packs_want(const struct hint *hint)
{
	size_t count;

	shared_chunks_like(hint, &count);
	return count || shared_chunk_is_offered(hint);
}

/* Under another name first: what is there is whole.  */
int memory_packs_offer(const struct hint *hints, size_t count)
{
	const char *made = OFFERS ".new";
	int descriptor = openat(own.descriptor, made, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600), error = 0;
	size_t bytes = (count < OFFERS_MAX ? count : OFFERS_MAX) * sizeof(*hints);

	if (descriptor < 0)
		return -errno;
	if (bytes && pwrite(descriptor, hints, bytes, 0) != (ssize_t)bytes)
		error = -ENOSPC;
	close(descriptor);
	if (!error && renameat(own.descriptor, made, own.descriptor, OFFERS) != 0)
		error = -errno;
	if (error)
		unlinkat(own.descriptor, made, 0);
	return error;
}

void memory_packs_done(void)
{
	places.to_memory = false;
	unlock(&users);
}

void memory_packs_leave(void)
{
	char *slash;
	char above[PACK_PATH_SIZE];
	int descriptor;

	if (!has_folder())
		return unlock(&own);
	memcpy(above, places.memory, sizeof(above));
	slash = strrchr(above, '/');
	*slash = '\0';
	descriptor = open(above, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (descriptor >= 0) {
		remove_folder(descriptor, slash + 1);
		close(descriptor);
	}
	unlock(&own);
}

/* The locks are the parent's: they are let go with the last descriptor.  */
void memory_packs_close_in_child(void)
{
	unlock(&own);
	unlock(&users);
}

static OF_PROCESS struct {
	struct memory_packs_use use;
	uint64_t at_ns;
} seen;

/* Look at the packs' names. With places.lock held.  */
static void look(void)
{
	seen.use = (struct memory_packs_use){0};
	for (unsigned i = 0; i < PACKS; i++) {
		struct pack *pack = places.packs[i];
		struct stat status = {0};

		if (!pack || !pack->in_memory)
			continue;
		if (disk_status_at(pack->path, &status) != 0 || status.st_ino != pack->inode)
			status = (struct stat){.st_nlink = 1, .st_blocks = (blkcnt_t)(pack->used * CHUNK_BYTES / 512)};
		pack->names = (unsigned)status.st_nlink;
		if (pack->names < 2) {
			seen.use.sole += pack->used * CHUNK_BYTES;
			continue;
		}
		seen.use.shared += pack->used * CHUNK_BYTES;
		seen.use.part += (uint64_t)status.st_blocks * 512 / pack->names;
	}
}

struct memory_packs_use memory_packs_use(void)
{
	uint64_t bytes = memory_packs_bytes(), now = clock_ns();
	struct memory_packs_use use;

	if (!bytes)
		return (struct memory_packs_use){0};
	pthread_mutex_lock(&places.lock);
	if (bytes != seen.use.bytes || now - seen.at_ns > LOOK_NS) {
		look();
		seen.use.bytes = bytes;
		seen.at_ns = now;
	}
	use = seen.use;
	pthread_mutex_unlock(&places.lock);
	return use;
}

bool memory_packs_is_sole(uint32_t place)
{
	bool is;

	pthread_mutex_lock(&places.lock);
	is = places.packs[(place - 1) / PACK_PLACES]->names < 2;
	pthread_mutex_unlock(&places.lock);
	return is;
}
