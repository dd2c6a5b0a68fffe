#define _GNU_SOURCE
#include "host/packs/shared_packs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/growable.h"

#define PREFIX "gpu-"

static struct {
	struct shared_pack *packs;
	size_t pack_count, pack_room;
	struct shared_chunk *chunks; /* sorted by hint */
	size_t chunk_count, chunk_room;
	struct hint *offers; /* sorted */
	size_t offer_count;
} found;

void shared_packs_forget(void)
{
	free(found.packs);
	free(found.chunks);
	free(found.offers);
	memset(&found, 0, sizeof(found));
}

static void take_hints(const struct hint *hints)
{
	for (uint32_t i = 0; i < PACK_PLACES; i++)
		if (hints[i].words[0] && array_has_room(found.chunks, found.chunk_count, found.chunk_room))
			found.chunks[found.chunk_count++] = (struct shared_chunk){hints[i], (uint32_t)found.pack_count, i};
}

/* One file may have many names; it is looked at once.  */
static void look_at(int folder, const char *path, const char *name)
{
	int descriptor = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct hint hints[PACK_PLACES];
	struct shared_pack *pack;
	struct stat status;

	if (descriptor < 0)
		return;
	if (disk_status(descriptor, &status) == 0 && pack_is_one(&status) && !shared_pack_of(status.st_dev, status.st_ino) &&
	    pread(descriptor, hints, sizeof(hints), PACK_BYTES) == (ssize_t)sizeof(hints) &&
	    array_has_room(found.packs, found.pack_count, found.pack_room)) {
		pack = &found.packs[found.pack_count];
		*pack = (struct shared_pack){.device = status.st_dev, .inode = status.st_ino, .number = NOT_TAKEN};
		if ((size_t)snprintf(pack->path, sizeof(pack->path), "%s/%s", path, name) < sizeof(pack->path)) {
			take_hints(hints);
			found.pack_count++;
		}
	}
	close(descriptor);
}

static void look_at_offers(int folder)
{
	int descriptor = openat(folder, OFFERS, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct hint *larger;
	struct stat status;
	size_t count;

	if (descriptor < 0)
		return;
	if (disk_status(descriptor, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
	    status.st_size >= (off_t)sizeof(*larger)) {
		count = (size_t)status.st_size / sizeof(*larger);
		count = count < OFFERS_MAX ? count : OFFERS_MAX;
		larger = realloc(found.offers, (found.offer_count + count) * sizeof(*larger));
		if (larger)
			found.offers = larger;
		if (larger && pread(descriptor, larger + found.offer_count, count * sizeof(*larger), 0) ==
				      (ssize_t)(count * sizeof(*larger)))
			found.offer_count += count;
	}
	close(descriptor);
}

/* Open a folder that is this user's, and that no other may enter. Return NULL if there is none.  */
static DIR *open_private(int above, const char *name)
{
	int descriptor = openat(above, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	struct stat status;
	DIR *folder = NULL;

	if (descriptor < 0)
		return NULL;
	if (disk_status(descriptor, &status) == 0 && status.st_uid == geteuid() && !(status.st_mode & 077))
		folder = fdopendir(descriptor);
	if (!folder)
		close(descriptor);
	return folder;
}

static void look_into(int store, const char *path, const char *name, bool is_own)
{
	DIR *image = open_private(store, name);
	char its_path[PACK_PATH_SIZE];
	struct dirent *entry;

	if (!image)
		return;
	if ((size_t)snprintf(its_path, sizeof(its_path), "%s/%s", path, name) < sizeof(its_path))
		while ((entry = readdir(image)) != NULL) {
			if (!strncmp(entry->d_name, PREFIX, strlen(PREFIX)))
				look_at(dirfd(image), its_path, entry->d_name);
			else if (!is_own && !strcmp(entry->d_name, OFFERS))
				look_at_offers(dirfd(image));
		}
	closedir(image);
}

/* A chunk begins with its hint.  */
static int by_hint(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct hint));
}

void shared_packs_find(const char *folder)
{
	const char *slash = strrchr(folder, '/');
	char path[PACK_PATH_SIZE];
	struct dirent *entry;
	DIR *store;

	shared_packs_forget();
	if (!slash || (size_t)snprintf(path, sizeof(path), "%.*s", (int)(slash - folder), folder) >= sizeof(path))
		return;
	store = open_private(AT_FDCWD, path);
	if (!store)
		return;
	while ((entry = readdir(store)) != NULL)
		if (entry->d_name[0] != '.')
			look_into(dirfd(store), path, entry->d_name, !strcmp(entry->d_name, slash + 1));
	closedir(store);
	if (found.chunk_count)
		qsort(found.chunks, found.chunk_count, sizeof(*found.chunks), by_hint);
	if (found.offer_count)
		qsort(found.offers, found.offer_count, sizeof(*found.offers), by_hint);
}

bool shared_chunk_is_offered(const struct hint *hint)
{
	return found.offer_count && bsearch(hint, found.offers, found.offer_count, sizeof(*hint), by_hint);
}

const struct shared_chunk *shared_chunks_like(const struct hint *hint, size_t *count)
{
	size_t low = 0, high = found.chunk_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (memcmp(&found.chunks[middle].hint, hint, sizeof(*hint)) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	for (high = low; high < found.chunk_count && !memcmp(&found.chunks[high].hint, hint, sizeof(*hint));)
		high++;
	*count = high - low;
	return found.chunks + low;
}

struct shared_pack *shared_pack(uint32_t index)
{
	return &found.packs[index];
}

struct shared_pack *shared_pack_of(dev_t device, ino_t inode)
{
	for (size_t i = 0; i < found.pack_count; i++)
		if (found.packs[i].device == device && found.packs[i].inode == inode)
			return &found.packs[i];
	return NULL;
}
