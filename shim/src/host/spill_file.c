#define _GNU_SOURCE
#include "host/spill_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/log.h"
#include "base/per_process.h"

#define TMPFS_MAGIC 0x01021994
#define RAMFS_MAGIC 0x858458f6
/* Out of the way of programs that close or reuse low numbers.  */
#define DESCRIPTOR_FROM 512
#define PLACES_IN_WORD 64
#define PLACES_A_STEP 512 /* by which the file grows: a GiB */

/* Guards `taken`, `steps` and `hint`. The descriptor and the mapping change only while nothing reads or writes.  */
static OF_PROCESS pthread_mutex_t places_lock = PTHREAD_MUTEX_INITIALIZER;
static OF_PROCESS struct {
	int descriptor;
	dev_t device; /* which file it is: a program may close descriptors that are not its own */
	ino_t inode; /* 0: there is no file */
	bool direct;
	/* All of it, for reading. It keeps the file, and is read from, if the descriptor is taken away.  */
	unsigned char *mapping;
	size_t steps;
	uint64_t *taken; /* a bit for each place */
	size_t hint;     /* the place after the last one that was given out */
} file;
static OF_PROCESS _Atomic uint64_t places_taken, chunks_written;

uint64_t spill_bytes(void)
{
	return atomic_load(&places_taken) * CHUNK_BYTES;
}

uint64_t spill_written_bytes(void)
{
	return atomic_load(&chunks_written) * CHUNK_BYTES;
}

/* Read a file's status by the system call itself, since glibc's fstat has no version that is old enough.  */
static int status_of(int descriptor, struct stat *status)
{
	return syscall(SYS_fstat, descriptor, status) == 0 ? 0 : -errno;
}

/* Return whether the descriptor is still the file's. A file that the program opened under its number must never be written to.  */
static bool is_there(void)
{
	struct stat status;

	return file.inode && status_of(file.descriptor, &status) == 0 && status.st_dev == file.device &&
	       status.st_ino == file.inode;
}

static int refuse(int error, char *why, size_t size, const char *folder, const char *text)
{
	snprintf(why, size, "the spill folder %.100s %s", folder, text);
	return error;
}

/* Open the folder that the administrator or the user chose, and check that it is theirs and on a disk. Nothing in it has a name
 * that another user could take first.  */
static int open_shared(const char *folder, char *why, size_t size)
{
	int descriptor = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), error = 0;
	struct statfs disk;
	struct stat status;

	if (descriptor < 0)
		return refuse(-errno, why, size, folder, errno == ELOOP || errno == ENOTDIR
								 ? "is no folder, or a symbolic link" : "cannot be opened here");
	if (status_of(descriptor, &status) != 0 || fstatfs(descriptor, &disk) != 0)
		error = refuse(-EIO, why, size, folder, "cannot be looked at");
	else if (status.st_uid != 0 && status.st_uid != geteuid())
		error = refuse(-EPERM, why, size, folder, "belongs to another user");
	else if (status.st_mode & (S_IWGRP | S_IWOTH) && !(status.st_mode & S_ISVTX))
		error = refuse(-EPERM, why, size, folder, "may be changed by others and has no sticky bit");
	else if ((unsigned long)disk.f_type == TMPFS_MAGIC || (unsigned long)disk.f_type == RAMFS_MAGIC)
		error = refuse(-ENOTSUP, why, size, folder, "is in host memory itself (tmpfs)");
	if (!error)
		return descriptor;
	close(descriptor);
	return error;
}

/* Make a file on file systems that make none without a name, by a random name that no other user can have taken before.  */
static int open_named(int shared, int flags)
{
	unsigned long number[2];
	char name[64];
	int descriptor, error;

	if (syscall(SYS_getrandom, number, sizeof(number), 0) != (long)sizeof(number)) {
		errno = EIO;
		return -1;
	}
	snprintf(name, sizeof(name), ".affinode-%016lx%016lx", number[0], number[1]);
	descriptor = openat(shared, name, flags | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
	error = errno;
	unlinkat(shared, name, 0); /* also after a failure: the kernel makes the file before it refuses O_DIRECT */
	errno = error;
	return descriptor;
}

/* Make a file without a name. With O_EXCL it can never get one.  */
static int open_file(int shared)
{
	const int flags = O_RDWR | O_CLOEXEC;
	int descriptor, direct = O_DIRECT;

	do {
		descriptor = openat(shared, ".", flags | direct | O_TMPFILE | O_EXCL, 0600);
		if (descriptor < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT))
			descriptor = open_named(shared, flags | direct);
		file.direct = direct;
		direct = direct ? 0 : -1;
	} while (descriptor < 0 && errno == EINVAL && direct == 0);
	return descriptor < 0 ? -errno : descriptor;
}

static void forget(void)
{
	if (file.mapping)
		munmap(file.mapping, file.steps * PLACES_A_STEP * CHUNK_BYTES);
	if (is_there())
		close(file.descriptor);
	free(file.taken);
	memset(&file, 0, sizeof(file));
}

static int take_file(int descriptor)
{
	int high = fcntl(descriptor, F_DUPFD_CLOEXEC, DESCRIPTOR_FROM);
	struct stat status;

	if (high >= 0) {
		close(descriptor);
		descriptor = high;
	}
	if (status_of(descriptor, &status) != 0) {
		close(descriptor);
		return -EIO;
	}
	file.descriptor = descriptor;
	file.device = status.st_dev;
	file.inode = status.st_ino;
	return 0;
}

int spill_open(const char *folder, char *why, size_t size)
{
	int shared, made;

	if (spill_bytes()) {
		if (is_there())
			return 0;
		snprintf(why, size, "the program has closed the file that freed GPU memory goes to");
		return -EBADF;
	}
	forget();
	shared = open_shared(folder, why, size);
	if (shared < 0)
		return shared;
	made = open_file(shared);
	close(shared);
	if (made >= 0)
		made = take_file(made);
	return made < 0 ? refuse(made, why, size, folder, "does not let this user make a file in it") : 0;
}

static bool is_taken(size_t at)
{
	return file.taken[at / PLACES_IN_WORD] >> at % PLACES_IN_WORD & 1;
}

static int open_at(const char *path)
{
	const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
	int descriptor;

	if (unlink(path) != 0 && errno != ENOENT) /* of an earlier process with this number */
		return -errno;
	file.direct = true;
	descriptor = open(path, flags | O_DIRECT, 0600);
	if (descriptor < 0 && errno == EINVAL) {
		unlink(path); /* made before O_DIRECT was refused */
		file.direct = false;
		descriptor = open(path, flags, 0600);
	}
	return descriptor < 0 ? -errno : descriptor;
}

/* Copy the file's contents to the same places of another. They are read by the mapping, into memory that is aligned as the disk
 * needs it for writing.  */
static int copy_places(int to)
{
	unsigned char *buffer = mmap(NULL, CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int error = buffer == MAP_FAILED ? -ENOMEM : 0;

	for (size_t at = 0; !error && at < file.steps * PLACES_A_STEP; at++) {
		ssize_t n;

		if (!is_taken(at))
			continue;
		memcpy(buffer, file.mapping + at * CHUNK_BYTES, CHUNK_BYTES);
		n = pwrite(to, buffer, CHUNK_BYTES, (off_t)(at * CHUNK_BYTES));
		error = n == (ssize_t)CHUNK_BYTES ? 0 : n < 0 ? -errno : -ENOSPC;
	}
	if (buffer != MAP_FAILED)
		munmap(buffer, CHUNK_BYTES);
	return error;
}

/* Put another file in the place of the process's file.  */
static int exchange(int descriptor)
{
	const size_t bytes = file.steps * PLACES_A_STEP * CHUNK_BYTES;
	int before = file.descriptor, error = copy_places(descriptor);
	bool had = is_there();
	void *mapping = NULL;

	if (!error && bytes)
		mapping = mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
	if (error || mapping == MAP_FAILED) {
		close(descriptor);
		return error ? error : -ENOMEM;
	}
	if (file.mapping)
		munmap(file.mapping, bytes);
	if (bytes) {
		madvise(mapping, bytes, MADV_DONTFORK);
		madvise(mapping, bytes, MADV_DONTDUMP);
	}
	file.mapping = mapping;
	error = take_file(descriptor);
	if (had)
		close(before);
	return error;
}

static bool is_at(const char *path)
{
	struct stat status;

	return is_there() && syscall(SYS_newfstatat, AT_FDCWD, path, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
	       status.st_dev == file.device && status.st_ino == file.inode;
}

int spill_name(const char *path, char *why, size_t size)
{
	bool direct = file.direct;
	int made, error;

	if (is_at(path))
		return 0;
	made = open_at(path);
	error = made < 0 ? made : exchange(made);
	if (!error)
		return 0;
	if (made >= 0)
		unlink(path);
	file.direct = direct;
	snprintf(why, size, "the file %.120s cannot be written: %s", path, strerror(-error));
	return error;
}

void spill_found_again(void)
{
	struct stat status;

	if (file.inode && status_of(file.descriptor, &status) == 0) {
		file.device = status.st_dev;
		file.inode = status.st_ino;
	}
}

/* Add a step of places, which are mapped before any of them is used. Return 0 or a negative errno.  */
static int grow(void)
{
	const size_t step = PLACES_A_STEP * CHUNK_BYTES, words = PLACES_A_STEP / PLACES_IN_WORD;
	uint64_t *taken = realloc(file.taken, (file.steps + 1) * words * sizeof(*taken));
	void *mapping;

	if (!taken)
		return -ENOMEM;
	file.taken = taken;
	if (file.mapping)
		mapping = mremap(file.mapping, file.steps * step, (file.steps + 1) * step, MREMAP_MAYMOVE);
	else
		mapping = mmap(NULL, step, PROT_READ, MAP_SHARED | MAP_NORESERVE, file.descriptor, 0);
	if (mapping == MAP_FAILED)
		return -errno;
	madvise(mapping, (file.steps + 1) * step, MADV_DONTFORK);
	madvise(mapping, (file.steps + 1) * step, MADV_DONTDUMP);
	file.mapping = mapping;
	memset(file.taken + file.steps * words, 0, words * sizeof(*taken));
	file.steps++;
	return 0;
}

uint32_t spill_take(void)
{
	size_t at, count;

	pthread_mutex_lock(&places_lock);
	count = file.steps * PLACES_A_STEP;
	for (at = file.hint; at < count && is_taken(at);)
		at++;
	if (at == count && atomic_load(&places_taken) < count)
		for (at = 0; is_taken(at);)
			at++;
	if (at == count && grow() != 0)
		at = UINT32_MAX;
	if (at != UINT32_MAX) {
		file.taken[at / PLACES_IN_WORD] |= 1ull << at % PLACES_IN_WORD;
		file.hint = at + 1;
		atomic_fetch_add(&places_taken, 1);
	}
	pthread_mutex_unlock(&places_lock);
	return (uint32_t)(at + 1);
}

static off_t offset_of(uint32_t place)
{
	return (off_t)((uint64_t)(place - 1) * CHUNK_BYTES);
}

void spill_give(uint32_t place)
{
	size_t at = place - 1;

	pthread_mutex_lock(&places_lock);
	file.taken[at / PLACES_IN_WORD] &= ~(1ull << at % PLACES_IN_WORD);
	if (at < file.hint)
		file.hint = at;
	/* Where holes cannot be made the space is used again, and is free when the file is empty.  */
	if (atomic_fetch_sub(&places_taken, 1) == 1 && is_there())
		(void)!ftruncate(file.descriptor, 0);
	else if (is_there())
		fallocate(file.descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset_of(place),
			  (off_t)CHUNK_BYTES);
	pthread_mutex_unlock(&places_lock);
}

/* Go on without O_DIRECT, and return whether that may help: not every memory can be handed to the disk, nor does every file
 * system know how.  */
static bool go_without_direct(int error)
{
	int flags = fcntl(file.descriptor, F_GETFL);

	if ((error != EINVAL && error != EFAULT) || flags < 0 || !(flags & O_DIRECT))
		return false;
	log_line("spill: not past the system's cache: errno %d", error);
	file.direct = false;
	return fcntl(file.descriptor, F_SETFL, flags & ~O_DIRECT) == 0;
}

/* Write what is only in the system's cache to the disk, and drop it from the cache, where it takes host memory.  */
static int past_cache(uint32_t place, size_t bytes, bool written)
{
	if (file.direct)
		return 0;
	if (written && fdatasync(file.descriptor) != 0)
		return -errno;
	posix_fadvise(file.descriptor, offset_of(place), (off_t)bytes, POSIX_FADV_DONTNEED);
	return 0;
}

int spill_write(uint32_t place, const void *from)
{
	size_t done = 0;

	while (done < CHUNK_BYTES) {
		ssize_t n;

		if (!is_there())
			return -EBADF;
		n = pwrite(file.descriptor, (const char *)from + done, CHUNK_BYTES - done,
			   offset_of(place) + (off_t)done);
		if (n > 0)
			done += (size_t)n;
		else if (n == 0)
			return -EIO;
		else if (errno != EINTR && !go_without_direct(errno))
			return -errno;
	}
	atomic_fetch_add(&chunks_written, 1);
	return past_cache(place, CHUNK_BYTES, true);
}

int spill_read(uint32_t place, void *to, size_t bytes)
{
	size_t done = 0;

	if (!is_there()) { /* the program closed it: its contents are there all the same */
		memcpy(to, file.mapping + offset_of(place), bytes);
		return 0;
	}
	while (done < bytes) {
		ssize_t n = pread(file.descriptor, (char *)to + done, bytes - done, offset_of(place) + (off_t)done);

		if (n > 0)
			done += (size_t)n;
		else if (n == 0)
			return -EIO;
		else if (errno != EINTR && !go_without_direct(errno))
			return -errno;
	}
	return past_cache(place, bytes, false);
}

/* The child has no mapping of the file (MADV_DONTFORK).  */
void spill_close_in_child(void)
{
	if (is_there())
		close(file.descriptor);
}
