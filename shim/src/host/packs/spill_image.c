/* What goes to an image, and what of it is there already. So is what goes to packs in memory (memory_packs.c).  */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "host/packs/private_folder.h"
#include "host/packs/shared_packs.h"
#include "host/packs/spill_file.h"
#include "host/packs/spill_internal.h"

static bool is_pack(const struct pack *pack, const struct shared_pack *shared)
{
	return pack && pack->device == shared->device && pack->inode == shared->inode;
}

/* Use the place of contents that may be equal, in a file that this process gets a name for if it has none. Return 0 if there is none.  */
static uint32_t use_shared(const struct shared_chunk *chunk)
{
	struct shared_pack *shared = shared_pack(chunk->pack);
	uint32_t place = 0;
	bool linked = false;

	pthread_mutex_lock(&places.lock);
	if (shared->number >= 0 && !is_pack(places.packs[shared->number], shared)) /* its last place was given back meanwhile */
		shared->number = NOT_TAKEN;
	if (shared->number == NOT_TAKEN) {
		unsigned number = places_add_pack(shared->path);

		shared->number = number < PACKS ? (int)number : CANNOT_TAKE;
		if (number < PACKS && !is_pack(places.packs[number], shared)) { /* another file has that name by now */
			places_remove_pack(number);
			shared->number = CANNOT_TAKE;
		}
		linked = shared->number >= 0;
	}
	if (shared->number >= 0) {
		struct pack *pack = places.packs[shared->number];

		if (pack->written[chunk->at] && pack->users[chunk->at] < UINT16_MAX) {
			place_use(pack, chunk->at);
			place = place_of((unsigned)shared->number, chunk->at);
		} else if (linked) { /* the other process has given the place back: nothing here would take the name away */
			places_remove_pack((unsigned)shared->number);
			shared->number = NOT_TAKEN;
		}
	}
	pthread_mutex_unlock(&places.lock);
	return place;
}

/* Return whether the disk has these contents at that place. It is read: so it is known that it can be, too.  */
static bool is_equal(uint32_t place, const void *contents)
{
	void *there = mmap(NULL, CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	bool equal = there != MAP_FAILED && place_read(place, there, CHUNK_BYTES) == 0 && memcmp(there, contents, CHUNK_BYTES) == 0;

	if (there != MAP_FAILED)
		munmap(there, CHUNK_BYTES);
	return equal;
}

uint32_t image_find_equal(const struct hint *hint, const void *contents)
{
	const struct shared_chunk *chunks;
	size_t count;

	chunks = shared_chunks_like(hint, &count);
	for (size_t i = 0; i < count; i++) {
		uint32_t place = use_shared(&chunks[i]);

		if (place && is_equal(place, contents))
			return place;
		if (place)
			spill_give(place);
	}
	return 0;
}

void spill_publish(void)
{
	pthread_mutex_lock(&places.lock);
	for (unsigned i = 0; i < PACKS; i++)
		if (places.packs[i])
			pack_publish(places.packs[i]);
	pthread_mutex_unlock(&places.lock);
}

static bool is_at(const struct pack *pack, const char *path)
{
	struct stat status;

	return !strcmp(pack->path, path) && disk_status_at(path, &status) == 0 && status.st_dev == pack->device &&
	       status.st_ino == pack->inode;
}

/* Have the pack's file under that name. Return 0 or a negative errno.  */
static int give_name(struct pack *pack, const char *path)
{
	const struct shared_pack *shared = shared_pack_of(pack->device, pack->inode);
	struct pack linked;
	int error = pack_make_or_link(&linked, shared ? shared->path : pack->path, path);

	if (error)
		return error;
	if (linked.device != pack->device || linked.inode != pack->inode) {
		pack_end(&linked);
		return -ESTALE;
	}
	munmap(pack->mapping, PACK_BYTES);
	if (strcmp(pack->path, path) != 0)
		unlink(pack->path);
	pthread_mutex_lock(&places.lock);
	pack->mapping = linked.mapping;
	memcpy(pack->path, path, sizeof(pack->path));
	pthread_mutex_unlock(&places.lock);
	return 0;
}

static bool has_users(const struct pack *pack, unsigned at)
{
	bool has;

	pthread_mutex_lock(&places.lock);
	has = pack->users[at] > 0;
	pthread_mutex_unlock(&places.lock);
	return has;
}

/* Copy what is used to the same places of a new pack. It is read by the mapping, into memory that is aligned as the disk needs it for
 * writing. What is freed meanwhile is copied in vain.  */
static int copy_used(const struct pack *from, struct pack *to)
{
	unsigned char *buffer = mmap(NULL, CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct disk_file file;
	int error;

	if (buffer == MAP_FAILED)
		return -ENOMEM;
	error = pack_open(to, &file, O_RDWR);
	if (error) {
		munmap(buffer, CHUNK_BYTES);
		return error;
	}
	for (unsigned at = 0; !error && at < PACK_PLACES; at++) {
		if (!has_users(from, at))
			continue;
		memcpy(buffer, from->mapping + at * CHUNK_BYTES, CHUNK_BYTES);
		error = disk_write(&file, (off_t)(at * CHUNK_BYTES), buffer, CHUNK_BYTES);
		to->hints[at] = pack_hint(buffer);
		to->written[at] = to->changed = true;
	}
	close(file.descriptor);
	munmap(buffer, CHUNK_BYTES);
	return error;
}

/* Put a copy in the place of a pack.  */
static void exchange(unsigned number, struct pack *copy)
{
	struct pack *before = places.packs[number];

	pthread_mutex_lock(&places.lock);
	copy->used = before->used;
	memcpy(copy->users, before->users, sizeof(copy->users));
	copy->has_unused = true;
	atomic_store(&places.has_unused, true);
	if (!before->path[0])
		unnamed_left(number);
	places.packs[number] = copy;
	pthread_mutex_unlock(&places.lock);
	pack_end(before);
	free(before);
}

static int bring_into_image(unsigned number)
{
	char path[PACK_PATH_SIZE];
	struct pack *copy;
	int error;

	if (!pack_name(number, path))
		return -ENAMETOOLONG;
	if (is_at(places.packs[number], path) || (places.packs[number]->path[0] && give_name(places.packs[number], path) == 0))
		return 0;
	copy = calloc(1, sizeof(*copy));
	error = copy ? pack_make_or_link(copy, NULL, path) : -ENOMEM;
	if (error) {
		free(copy);
		return error;
	}
	error = copy_used(places.packs[number], copy);
	if (!error) {
		exchange(number, copy);
		return 0;
	}
	pack_end(copy);
	free(copy);
	return error;
}

void places_look_again(void)
{
	pthread_mutex_lock(&places.lock);
	for (unsigned i = 0; i < PACKS; i++) {
		struct shared_pack *shared;

		if (!places.packs[i])
			continue;
		pack_look_again(places.packs[i]);
		shared = shared_pack_of(places.packs[i]->device, places.packs[i]->inode);
		if (shared)
			shared->number = (int)i;
	}
	pthread_mutex_unlock(&places.lock);
}

/* Those in memory end when nothing is left in them.  */
static bool is_on_disk(unsigned number)
{
	bool is;

	pthread_mutex_lock(&places.lock);
	is = places.packs[number] && !places.packs[number]->in_memory;
	pthread_mutex_unlock(&places.lock);
	return is;
}

int spill_into_image(const char *folder, char *why, size_t size)
{
	int error = 0, there = private_folder_open(folder, why, size);

	if (there < 0)
		return there;
	close(there);
	snprintf(places.image, sizeof(places.image), "%s", folder);
	shared_packs_find(folder);
	for (unsigned i = 0; i < PACKS && !error; i++)
		error = is_on_disk(i) ? bring_into_image(i) : 0;
	if (error) {
		snprintf(why, size, "the image %.120s cannot be written: %s", folder, strerror(-error));
		return error;
	}
	places_look_again();
	unnamed_forget();
	return 0;
}

/* Return whether a pack's image counts: its process was woken, and may be woken again.  */
static bool image_counts(const struct pack *pack)
{
	const char *slash = strrchr(pack->path, '/');
	char woken[PACK_PATH_SIZE];

	return slash && (size_t)snprintf(woken, sizeof(woken), "%.*s/woken.json", (int)(slash - pack->path), pack->path) < sizeof(woken) &&
	       access(woken, F_OK) == 0;
}

void spill_tidy(void)
{
	bool left = false;

	shared_packs_forget();
	if (!atomic_exchange(&places.has_unused, false))
		return;
	for (unsigned i = 0; i < PACKS; i++) {
		struct pack *pack;

		pthread_mutex_lock(&places.lock);
		pack = places.packs[i];
		if (pack && pack->path[0] && pack->has_unused && image_counts(pack))
			left = true;
		else if (pack && pack->path[0] && pack->used == 0)
			places_remove_pack(i);
		else if (pack && pack->has_unused)
			pack_free_unused(pack);
		pthread_mutex_unlock(&places.lock);
	}
	if (left)
		atomic_store(&places.has_unused, true);
}
