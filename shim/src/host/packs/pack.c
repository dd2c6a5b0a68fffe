#define _GNU_SOURCE
#include "host/packs/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"

#define LANES 8

/* Behind the hints: a byte that is not zero once the pack has been shared.  */
#define SHARED_AT ((off_t)(PACK_BYTES + sizeof(struct hint) * PACK_PLACES))

_Static_assert(sizeof(struct hint) * PACK_PLACES < PACK_HINTS_BYTES, "the hints have room");

/* Not against an adversary: whatever has the same hint is compared.  */
struct hint pack_hint(const void *chunk)
{
	static const uint64_t odd = 0x9e3779b97f4a7c15;
	const uint64_t *words = chunk;
	uint64_t lanes[LANES] = {1, 2, 3, 4, 5, 6, 7, 8};
	struct hint hint = {{1, 2}};

	for (size_t at = 0; at < CHUNK_BYTES / sizeof(*words); at += LANES)
		for (unsigned i = 0; i < LANES; i++) {
			uint64_t mixed = (lanes[i] ^ words[at + i]) * odd;

			lanes[i] = mixed << 29 | mixed >> 35;
		}
	for (unsigned i = 0; i < LANES; i++) {
		hint.words[0] = (hint.words[0] ^ lanes[i]) * odd;
		hint.words[0] ^= hint.words[0] >> 32;
		hint.words[1] = (hint.words[1] + lanes[i]) * odd;
		hint.words[1] ^= hint.words[1] >> 29;
	}
	hint.words[0] |= 1;
	return hint;
}

void *pack_map(int descriptor, off_t at)
{
	void *mapping = mmap(NULL, PACK_BYTES, PROT_READ, MAP_SHARED | MAP_NORESERVE, descriptor, at);

	if (mapping == MAP_FAILED)
		return NULL;
	madvise(mapping, PACK_BYTES, MADV_DONTFORK);
	madvise(mapping, PACK_BYTES, MADV_DONTDUMP);
	return mapping;
}

static int identify(struct pack *pack, int descriptor)
{
	struct stat status;
	int error = disk_status(descriptor, &status);

	pack->device = status.st_dev;
	pack->inode = status.st_ino;
	return error;
}

static void set_path(struct pack *pack, const char *path)
{
	snprintf(pack->path, sizeof(pack->path), "%s", path);
}

int pack_make(struct pack *pack, const char *path)
{
	int descriptor = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600), error;

	if (descriptor < 0)
		return -errno;
	memset(pack, 0, sizeof(*pack));
	set_path(pack, path);
	pack->own = true;
	error = ftruncate(descriptor, PACK_FILE_BYTES) == 0 ? identify(pack, descriptor) : -errno;
	pack->mapping = error ? NULL : pack_map(descriptor, 0);
	if (!error && !pack->mapping)
		error = -ENOMEM;
	close(descriptor);
	if (error)
		unlink(path);
	return error;
}

bool pack_is_one(const struct stat *status)
{
	return S_ISREG(status->st_mode) && status->st_uid == geteuid() && status->st_size == PACK_FILE_BYTES;
}

static int read_hints(struct pack *pack, int descriptor)
{
	if (pread(descriptor, pack->hints, sizeof(pack->hints), PACK_BYTES) != sizeof(pack->hints))
		return -EIO;
	for (unsigned i = 0; i < PACK_PLACES; i++)
		pack->written[i] = pack->hints[i].words[0] != 0;
	return 0;
}

static bool is_it(const struct pack *pack, int descriptor)
{
	struct stat status;

	return disk_status(descriptor, &status) == 0 && status.st_dev == pack->device && status.st_ino == pack->inode;
}

/* Map the file by the process's own name, which is the one that it is found by when the process is woken.  */
static int map_by_name(struct pack *pack)
{
	int descriptor = open(pack->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), error = 0;

	if (descriptor < 0)
		return -errno;
	if (!is_it(pack, descriptor))
		error = -ESTALE; /* another file took the other name in between */
	pack->mapping = error ? NULL : pack_map(descriptor, 0);
	if (!error && !pack->mapping)
		error = -ENOMEM;
	close(descriptor);
	return error;
}

/* Places are freed only under the file's lock, and only before it was shared.  */
static int link_locked(struct pack *pack, const char *from, int descriptor)
{
	static const unsigned char yes = 1;
	int error;

	if (flock(descriptor, LOCK_SH | LOCK_NB) != 0)
		return -errno;
	if (pwrite(descriptor, &yes, sizeof(yes), SHARED_AT) != sizeof(yes))
		return -EIO;
	pack->shared = true;
	if (linkat(AT_FDCWD, from, AT_FDCWD, pack->path, 0) != 0)
		return -errno;
	error = map_by_name(pack);
	if (!error)
		error = read_hints(pack, descriptor);
	if (!error)
		return 0;
	if (pack->mapping)
		munmap(pack->mapping, PACK_BYTES);
	unlink(pack->path);
	return error;
}

int pack_link(struct pack *pack, const char *from, const char *path)
{
	int descriptor = open(from, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), error;
	struct stat status;

	if (descriptor < 0)
		return -errno;
	descriptor = disk_out_of_the_way(descriptor);
	memset(pack, 0, sizeof(*pack));
	set_path(pack, path);
	error = disk_status(descriptor, &status);
	if (!error && !pack_is_one(&status))
		error = -EINVAL;
	pack->device = status.st_dev;
	pack->inode = status.st_ino;
	if (!error)
		error = link_locked(pack, from, descriptor);
	close(descriptor); /* and the lock */
	return error;
}

int pack_open(const struct pack *pack, struct disk_file *file, int flags)
{
	int error = disk_open(file, pack->path, flags | O_NONBLOCK);

	if (error)
		return error;
	if (is_it(pack, file->descriptor))
		return 0;
	close(file->descriptor);
	return -ESTALE;
}

/* For what is smaller than the disk's unit: by the system's cache. Return a descriptor or a negative errno.  */
static int open_for_hints(const struct pack *pack)
{
	int descriptor = open(pack->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

	if (descriptor < 0)
		return -errno;
	if (is_it(pack, descriptor))
		return disk_out_of_the_way(descriptor);
	close(descriptor);
	return -ESTALE;
}

static bool write_hints(const struct pack *pack, int descriptor)
{
	return pwrite(descriptor, pack->hints, sizeof(pack->hints), PACK_BYTES) == (ssize_t)sizeof(pack->hints);
}

void pack_publish(struct pack *pack)
{
	int descriptor;

	if (!pack->changed)
		return;
	pack->changed = false;
	descriptor = open_for_hints(pack);
	if (descriptor < 0 || !write_hints(pack, descriptor))
		log_line("disk: %s is not shared, since its hints cannot be written", pack->path);
	if (descriptor >= 0)
		close(descriptor);
}

static bool is_shared(int descriptor)
{
	unsigned char shared;
	struct stat status;

	return disk_status(descriptor, &status) != 0 || status.st_nlink > 1 ||
	       pread(descriptor, &shared, sizeof(shared), SHARED_AT) != sizeof(shared) || shared;
}

void pack_free_unused(struct pack *pack)
{
	int descriptor = pack->own ? open_for_hints(pack) : -1;
	bool unused[PACK_PLACES];

	pack->has_unused = false;
	/* As long as the descriptor is open no process gets a name for it.  */
	if (descriptor >= 0 && flock(descriptor, LOCK_EX | LOCK_NB) == 0 && !is_shared(descriptor)) {
		for (unsigned i = 0; i < PACK_PLACES; i++) {
			unused[i] = pack->written[i] && !pack->users[i];
			if (unused[i])
				pack->hints[i] = (struct hint){{0, 0}};
		}
		(void)!write_hints(pack, descriptor); /* stale ones are compared in vain */
		for (unsigned i = 0; i < PACK_PLACES; i++) {
			if (!unused[i])
				continue;
			fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(i * CHUNK_BYTES), CHUNK_BYTES);
			pack->written[i] = false;
		}
	}
	if (descriptor >= 0)
		close(descriptor);
}

void pack_look_again(struct pack *pack)
{
	int descriptor = open_for_hints(pack);

	pack->shared = descriptor < 0 || is_shared(descriptor);
	if (descriptor < 0)
		return;
	if (!pack->own)
		read_hints(pack, descriptor);
	close(descriptor);
}

void pack_found_again(struct pack *pack)
{
	struct stat status;

	if (disk_status_at(pack->path, &status) == 0 && pack_is_one(&status)) {
		pack->device = status.st_dev;
		pack->inode = status.st_ino;
	}
}

void pack_end(struct pack *pack)
{
	struct stat status;

	if (pack->path[0] && disk_status_at(pack->path, &status) == 0 && status.st_dev == pack->device &&
	    status.st_ino == pack->inode)
		unlink(pack->path);
	if (pack->mapping)
		munmap(pack->mapping, PACK_BYTES);
}
