#define _GNU_SOURCE
#include "host/packs/spill_file.h"

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
#include "host/packs/disk_file.h"
#include "host/packs/memory_packs.h"
#include "host/packs/pack.h"
#include "host/packs/private_folder.h"
#include "host/packs/spill_internal.h"

#define TMPFS_MAGIC 0x01021994
#define RAMFS_MAGIC 0x858458f6
OF_PROCESS struct places places;
static OF_PROCESS uint32_t next_at; /* the place after the last one that was given out, from 0 */

/* The file without a name. It changes only while nothing reads or writes.  */
static OF_PROCESS struct {
	int descriptor;
	_Atomic bool direct;
	dev_t device; /* which file it is: a program may close descriptors that are not its own */
	ino_t inode; /* 0: there is none */
	unsigned used; /* places with users, guarded by places.lock */
} unnamed;
static OF_PROCESS _Atomic uint64_t chunks_on_disk, chunks_in_memory, chunks_written, chunks_written_to_memory;

uint64_t spill_bytes(void)
{
	return atomic_load(&chunks_on_disk) * CHUNK_BYTES;
}

uint64_t memory_packs_bytes(void)
{
	return atomic_load(&chunks_in_memory) * CHUNK_BYTES;
}

uint64_t memory_packs_written(void)
{
	return atomic_load(&chunks_written_to_memory) * CHUNK_BYTES;
}

uint64_t spill_written_bytes(void)
{
	return atomic_load(&chunks_written) * CHUNK_BYTES;
}

static struct pack *pack_of(uint32_t place)
{
	return places.packs[(place - 1) / PACK_PLACES];
}

static unsigned at_in_pack(uint32_t place)
{
	return (place - 1) % PACK_PLACES;
}

bool spill_is_in_memory(uint32_t place)
{
	return pack_of(place)->in_memory;
}

static off_t unnamed_offset(uint32_t place)
{
	return (off_t)((uint64_t)(place - 1) * CHUNK_BYTES);
}

/* ---- The file without a name  */

/* Return whether the descriptor is still the file's. A file that the program opened under its number must never be written to.  */
static bool is_there(void)
{
	struct stat status;

	return unnamed.inode && disk_status(unnamed.descriptor, &status) == 0 && status.st_dev == unnamed.device &&
	       status.st_ino == unnamed.inode;
}

static int refuse(int error, char *why, size_t size, const char *folder, const char *text)
{
	snprintf(why, size, "the folder %.100s %s", folder, text);
	return error;
}

int chosen_folder_open(const char *folder, bool in_memory, char *why, size_t size)
{
	int descriptor = private_folder_open(folder, why, size), error = 0;
	struct statfs disk;

	if (descriptor < 0)
		return descriptor;
	if (fstatfs(descriptor, &disk) != 0)
		error = refuse(-EIO, why, size, folder, "cannot be looked at");
	else if (in_memory && (unsigned long)disk.f_type != TMPFS_MAGIC)
		error = refuse(-ENOTSUP, why, size, folder, "is not in host memory (tmpfs)");
	else if (!in_memory && ((unsigned long)disk.f_type == TMPFS_MAGIC || (unsigned long)disk.f_type == RAMFS_MAGIC))
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
static int open_file(int shared, bool *is_direct)
{
	const int flags = O_RDWR | O_CLOEXEC;
	int descriptor, direct = O_DIRECT;

	do {
		descriptor = openat(shared, ".", flags | direct | O_TMPFILE | O_EXCL, 0600);
		if (descriptor < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT))
			descriptor = open_named(shared, flags | direct);
		*is_direct = direct != 0;
		direct = direct ? 0 : -1;
	} while (descriptor < 0 && errno == EINVAL && direct == 0);
	return descriptor < 0 ? -errno : descriptor;
}

void unnamed_forget(void)
{
	if (is_there())
		close(unnamed.descriptor);
	memset(&unnamed, 0, sizeof(unnamed));
}

void places_remove_pack(unsigned number)
{
	pack_end(places.packs[number]);
	free(places.packs[number]);
	places.packs[number] = NULL;
}

/* Only while nothing reads or writes.  */
static void remove_unnamed_packs(void)
{
	pthread_mutex_lock(&places.lock);
	for (unsigned i = 0; i < PACKS; i++)
		if (places.packs[i] && !places.packs[i]->path[0])
			places_remove_pack(i);
	pthread_mutex_unlock(&places.lock);
}

int spill_open(const char *folder, char *why, size_t size)
{
	struct stat status;
	int shared, made;
	bool direct;

	places.image[0] = '\0';
	if (unnamed.used) {
		if (is_there())
			return 0;
		snprintf(why, size, "the program has closed the file that freed GPU memory goes to");
		return -EBADF;
	}
	remove_unnamed_packs();
	unnamed_forget();
	shared = chosen_folder_open(folder, false, why, size); /* nothing in it has a name that another user could take first */
	if (shared < 0)
		return shared;
	made = open_file(shared, &direct);
	close(shared);
	if (made < 0)
		return refuse(made, why, size, folder, "does not let this user make a file in it");
	unnamed.descriptor = disk_out_of_the_way(made);
	atomic_store(&unnamed.direct, direct);
	if (disk_status(unnamed.descriptor, &status) != 0)
		return refuse(-EIO, why, size, folder, "does not let this user make a file in it");
	unnamed.device = status.st_dev;
	unnamed.inode = status.st_ino;
	return 0;
}

/* The child has no mapping of it (MADV_DONTFORK).  */
void spill_close_in_child(void)
{
	if (is_there())
		close(unnamed.descriptor);
	memory_packs_close_in_child();
}

/* ---- Packs  */

/* Return the folder that new packs go to; "": they are parts of the file without a name.  */
static const char *folder_of_new(void)
{
	return places.to_memory ? places.memory : places.image;
}

bool pack_name(unsigned number, char *path)
{
	return snprintf(path, PACK_PATH_SIZE, "%s/gpu-%d.%u", folder_of_new(), (int)getpid(), number) < PACK_PATH_SIZE;
}

int pack_make_or_link(struct pack *pack, const char *from, const char *path)
{
	int error = from ? pack_link(pack, from, path) : pack_make(pack, path);

	if (error != -EEXIST)
		return error;
	if (unlink(path) != 0)
		return -errno;
	return from ? pack_link(pack, from, path) : pack_make(pack, path);
}

unsigned places_add_pack(const char *from)
{
	unsigned number = 0;
	char path[PACK_PATH_SIZE];
	struct pack *pack;
	int error = 0;

	while (number < PACKS && places.packs[number])
		number++;
	pack = number < PACKS ? calloc(1, sizeof(*pack)) : NULL;
	if (!pack)
		return PACKS;
	if (folder_of_new()[0]) {
		error = pack_name(number, path) ? pack_make_or_link(pack, from, path) : -ENAMETOOLONG;
	} else {
		pack->own = true;
		pack->mapping = pack_map(unnamed.descriptor, unnamed_offset(place_of(number, 0)));
		error = pack->mapping ? 0 : -ENOMEM;
	}
	if (error) {
		log_line("disk: no pack %s: errno %d", from ? from : folder_of_new(), -error);
		free(pack);
		return PACKS;
	}
	pack->in_memory = places.to_memory;
	pack->names = pack->shared ? 2 : 1;
	places.packs[number] = pack;
	return number;
}

static bool is_free(const struct pack *pack, unsigned at)
{
	return !pack->users[at] && !pack->written[at];
}

/* Return whether new contents go to this pack.  */
static bool is_written_to(const struct pack *pack)
{
	return pack && pack->own && !pack->shared && pack->in_memory == places.to_memory &&
	       (pack->path[0] != '\0') == (folder_of_new()[0] != '\0');
}

void place_use(struct pack *pack, unsigned at)
{
	if (pack->users[at]++ == 0) {
		pack->used++;
		unnamed.used += !pack->path[0];
	}
	atomic_fetch_add(pack->in_memory ? &chunks_in_memory : &chunks_on_disk, 1);
}

/* With places.lock held, as the next ones.  */
static uint32_t find_free(uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++) {
		const struct pack *pack = places.packs[i / PACK_PLACES];

		if (!is_written_to(pack) || pack->used == PACK_PLACES)
			i |= PACK_PLACES - 1;
		else if (is_free(pack, i % PACK_PLACES))
			return i + 1;
	}
	return 0;
}

uint32_t spill_take(void)
{
	uint32_t place;
	unsigned number;

	pthread_mutex_lock(&places.lock);
	place = find_free(next_at, PACKS * PACK_PLACES);
	if (!place)
		place = find_free(0, next_at);
	if (!place && (number = places_add_pack(NULL)) < PACKS)
		place = place_of(number, 0);
	if (place) {
		place_use(pack_of(place), at_in_pack(place));
		next_at = place;
	}
	pthread_mutex_unlock(&places.lock);
	return place;
}

static void free_unnamed(struct pack *pack, uint32_t place)
{
	pack->written[at_in_pack(place)] = false;
	/* Where holes cannot be made the space is used again, and is free when the file is empty.  */
	if (--unnamed.used == 0 && is_there())
		(void)!ftruncate(unnamed.descriptor, 0);
	else if (is_there())
		fallocate(unnamed.descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, unnamed_offset(place), (off_t)CHUNK_BYTES);
}

/* With places.lock held.  */
static void give(uint32_t place)
{
	struct pack *pack = pack_of(place);
	unsigned at = at_in_pack(place);

	atomic_fetch_sub(pack->in_memory ? &chunks_in_memory : &chunks_on_disk, 1);
	if (--pack->users[at])
		return;
	pack->used--;
	if (place - 1 < next_at)
		next_at = place - 1;
	if (!pack->path[0])
		return free_unnamed(pack, place);
	if (pack->in_memory && pack->used == 0) /* another may wait for the memory */
		return places_remove_pack((place - 1) / PACK_PLACES);
	pack->has_unused = true;
	atomic_store(&places.has_unused, true);
}

void spill_give(uint32_t place)
{
	pthread_mutex_lock(&places.lock);
	give(place);
	pthread_mutex_unlock(&places.lock);
}

/* Return 0 or a negative errno; `file` is the pack's, at `*at` from where its place is. It is to be let go.  */
static int open_for(uint32_t place, struct disk_file *file, off_t *at, int flags)
{
	const struct pack *pack = pack_of(place);

	if (pack->path[0]) {
		*at = (off_t)(at_in_pack(place) * CHUNK_BYTES);
		return pack_open(pack, file, flags);
	}
	*at = unnamed_offset(place);
	*file = (struct disk_file){unnamed.descriptor, atomic_load(&unnamed.direct)};
	return is_there() ? 0 : -EBADF;
}

static void let_go(uint32_t place, const struct disk_file *file)
{
	if (pack_of(place)->path[0])
		close(file->descriptor);
	else if (!file->direct)
		atomic_store(&unnamed.direct, false);
}

int place_read(uint32_t place, void *to, size_t bytes)
{
	struct disk_file file;
	off_t at;
	int error;

	if (open_for(place, &file, &at, O_RDONLY) != 0) {
		memcpy(to, pack_of(place)->mapping + at_in_pack(place) * CHUNK_BYTES, bytes);
		return 0;
	}
	error = disk_read(&file, at, to, bytes);
	let_go(place, &file);
	return error;
}

int spill_read(uint32_t place, void *to, size_t bytes)
{
	int error = 0;

	while (bytes && !error) {
		size_t left = (PACK_PLACES - at_in_pack(place)) * CHUNK_BYTES, part = bytes < left ? bytes : left;

		error = place_read(place, to, part);
		place += (uint32_t)(part / CHUNK_BYTES);
		to = (char *)to + part;
		bytes -= part;
	}
	return error;
}

static int write_to(uint32_t place, const void *from)
{
	struct disk_file file;
	off_t at;
	int error = open_for(place, &file, &at, O_RDWR);

	if (error)
		return error;
	error = disk_write(&file, at, from, CHUNK_BYTES);
	let_go(place, &file);
	return error;
}

int spill_write(uint32_t *place, const void *from, const struct hint *known)
{
	struct pack *pack = pack_of(*place);
	unsigned at = at_in_pack(*place);
	struct hint hint = {{0, 0}};
	uint32_t equal = 0;
	int error;

	if (pack->path[0]) {
		hint = known ? *known : pack_hint(from);
		equal = image_find_equal(&hint, from);
	}
	if (equal) {
		spill_give(*place);
		*place = equal;
		return 0;
	}
	error = write_to(*place, from);
	if (error)
		return error;
	atomic_fetch_add(pack->in_memory ? &chunks_written_to_memory : &chunks_written, 1);
	pthread_mutex_lock(&places.lock);
	pack->written[at] = true;
	pack->hints[at] = hint;
	pack->changed = pack->path[0] != '\0';
	pthread_mutex_unlock(&places.lock);
	return 0;
}

void unnamed_left(unsigned number)
{
	unnamed.used -= places.packs[number]->used;
	fallocate(unnamed.descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, unnamed_offset(place_of(number, 0)), (off_t)PACK_BYTES);
}

void spill_found_again(void)
{
	struct stat status;

	if (unnamed.inode && disk_status(unnamed.descriptor, &status) == 0) {
		unnamed.device = status.st_dev;
		unnamed.inode = status.st_ino;
	}
	pthread_mutex_lock(&places.lock);
	for (unsigned i = 0; i < PACKS; i++)
		if (places.packs[i] && places.packs[i]->path[0] && !places.packs[i]->in_memory)
			pack_found_again(places.packs[i]);
	pthread_mutex_unlock(&places.lock);
}
