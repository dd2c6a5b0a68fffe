#define _GNU_SOURCE
#include "host/lent_memory.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/per_process.h"
#include "host/slabs.h"
#include "state/depth.h"

#define MAX_SLABS_IN_LOT 4096
#define MAX_ENDED 1024

struct lot {
	unsigned char *base;
	dev_t device; /* of its file, which tells it from others */
	ino_t inode;
	size_t slabs, free;
	uint32_t number; /* 0: of an earlier controller */
	bool is_lent;    /* to us, now */
	bool has_to_go;  /* as soon as it is not */
	struct lot *next;
	struct place {
		bool used;
		struct slab *slab; /* as it was made here; NULL: not yet */
	} places[];
};

static OF_PROCESS pthread_mutex_t lots_lock = PTHREAD_MUTEX_INITIALIZER;
static OF_PROCESS struct lot *lots;
/* Numbers of lots whose end the controller is to be told. If there is no place for one, the controller learns of it when the
 * process ends.  */
static uint32_t ended[MAX_ENDED];
static OF_PROCESS unsigned ended_count;

static void note_ended(uint32_t number)
{
	if (number && ended_count < MAX_ENDED)
		ended[ended_count++] = number;
}

/* Return the file's status; zeros if it cannot be read. It is the system call itself, since glibc's fstat has no version that
 * is old enough.  */
static struct stat status_of(int descriptor)
{
	struct stat status;

	if (syscall(SYS_fstat, descriptor, &status) != 0 || status.st_size < 0)
		memset(&status, 0, sizeof(status));
	return status;
}

/* Return the lot of that file; NULL if it is not mapped. Called with the lock held.  */
static struct lot *find(const struct stat *status)
{
	struct lot *lot = lots;

	while (lot && (lot->device != status->st_dev || lot->inode != status->st_ino))
		lot = lot->next;
	return lot;
}

/* Map a lot. Return NULL if it cannot be used.  */
static struct lot *map_lot(int descriptor, const struct stat *status, size_t slabs)
{
	struct lot *lot;
	void *base;

	if (slabs == 0 || slabs > MAX_SLABS_IN_LOT || (uint64_t)status->st_size < slabs * SLAB_BYTES)
		return NULL;
	lot = calloc(1, sizeof(*lot) + slabs * sizeof(lot->places[0]));
	base = lot ? mmap(NULL, slabs * SLAB_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0) : MAP_FAILED;
	if (base == MAP_FAILED) {
		free(lot);
		return NULL;
	}
	madvise(base, slabs * SLAB_BYTES, MADV_DONTFORK);
	madvise(base, slabs * SLAB_BYTES, MADV_DONTDUMP);
	lot->base = base;
	lot->slabs = slabs;
	lot->device = status->st_dev;
	lot->inode = status->st_ino;
	return lot;
}

static void lend(struct lot *lot, uint32_t number)
{
	lot->is_lent = true;
	lot->has_to_go = false;
	lot->free = lot->slabs;
	lot->number = number;
}

void lots_add(int descriptor, uint64_t bytes, uint32_t number)
{
	struct stat status = status_of(descriptor);
	struct lot *lot;

	pthread_mutex_lock(&lots_lock);
	lot = find(&status);
	if (!lot) {
		lot = map_lot(descriptor, &status, bytes / SLAB_BYTES);
		if (lot) {
			lot->next = lots;
			lots = lot;
		}
	}
	if (lot && !lot->is_lent) {
		lend(lot, number);
	} else if (lot) { /* what is in it stays: it ends under its first number */
		log_line("a lot was lent twice: ignored");
	} else {
		log_line("a lot of %llu bytes cannot be used", (unsigned long long)bytes);
		note_ended(number);
	}
	pthread_mutex_unlock(&lots_lock);
	close(descriptor);
}

void lots_forget(int descriptor)
{
	struct stat status = status_of(descriptor);
	struct lot *lot;

	pthread_mutex_lock(&lots_lock);
	lot = find(&status);
	if (lot)
		lot->has_to_go = true;
	pthread_mutex_unlock(&lots_lock);
	close(descriptor);
}

bool lots_next_ended(uint32_t *number)
{
	bool any;

	pthread_mutex_lock(&lots_lock);
	any = ended_count > 0;
	if (any)
		*number = ended[--ended_count];
	pthread_mutex_unlock(&lots_lock);
	return any;
}

void lots_forget_numbers(void)
{
	pthread_mutex_lock(&lots_lock);
	ended_count = 0;
	for (struct lot *lot = lots; lot; lot = lot->next) {
		lot->number = 0;
		lot->has_to_go = true;
	}
	pthread_mutex_unlock(&lots_lock);
}

size_t lots_available(void)
{
	size_t n = 0;

	pthread_mutex_lock(&lots_lock);
	for (struct lot *lot = lots; lot; lot = lot->next)
		n += lot->is_lent ? lot->free : 0;
	pthread_mutex_unlock(&lots_lock);
	return n;
}

uint64_t lots_bytes(void)
{
	uint64_t n = 0;

	pthread_mutex_lock(&lots_lock);
	for (struct lot *lot = lots; lot; lot = lot->next)
		n += lot->is_lent ? lot->slabs * SLAB_BYTES : 0;
	pthread_mutex_unlock(&lots_lock);
	return n;
}

static struct slab *take_from(struct lot *lot)
{
	struct place *place = lot->places;

	if (!lot->is_lent || !lot->free)
		return NULL;
	while (place->used)
		place++;
	if (!place->slab) {
		place->slab = calloc(1, sizeof(*place->slab));
		if (!place->slab)
			return NULL;
		place->slab->base = lot->base + (size_t)(place - lot->places) * SLAB_BYTES;
		place->slab->lot = lot;
	}
	place->used = true;
	lot->free--;
	return place->slab;
}

struct slab *lots_take(void)
{
	struct slab *slab = NULL;

	pthread_mutex_lock(&lots_lock);
	for (struct lot *lot = lots; lot && !slab; lot = lot->next)
		slab = take_from(lot);
	pthread_mutex_unlock(&lots_lock);
	return slab;
}

static struct place *place_of(const struct slab *slab)
{
	return &slab->lot->places[(size_t)(slab->base - slab->lot->base) / SLAB_BYTES];
}

/* With the lock.  */
static void give(struct slab *slab)
{
	struct place *place = place_of(slab);

	slab->lot->free += place->used;
	place->used = false;
}

bool lots_keep(struct slab *slab)
{
	bool stays;

	pthread_mutex_lock(&lots_lock);
	/* When a context comes back to the GPU the driver must find again what is registered.  */
	stays = !slab->lot->has_to_go && !checkpoint_is_possible();
	if (stays)
		give(slab);
	pthread_mutex_unlock(&lots_lock);
	return stays;
}

bool lots_has_to_go(const struct slab *slab)
{
	bool has_to;

	pthread_mutex_lock(&lots_lock);
	has_to = slab->lot->has_to_go;
	pthread_mutex_unlock(&lots_lock);
	return has_to;
}

bool lots_is_unused(const struct slab *slab)
{
	bool unused = true;

	pthread_mutex_lock(&lots_lock);
	for (size_t i = 0; i < slab->lot->slabs && unused; i++)
		unused = !slab->lot->places[i].used || !slab->lot->places[i].slab->used;
	pthread_mutex_unlock(&lots_lock);
	return unused;
}

void lots_give(struct slab *slab)
{
	pthread_mutex_lock(&lots_lock);
	give(slab);
	place_of(slab)->slab = NULL;
	pthread_mutex_unlock(&lots_lock);
}

static bool has_slabs(const struct lot *lot)
{
	for (size_t i = 0; i < lot->slabs; i++)
		if (lot->places[i].slab)
			return true;
	return false;
}

void lots_end_empty(void)
{
	pthread_mutex_lock(&lots_lock);
	for (struct lot *lot = lots; lot; lot = lot->next)
		if (lot->is_lent && lot->free == lot->slabs) {
			lot->is_lent = false;
			note_ended(lot->number);
		}
	pthread_mutex_unlock(&lots_lock);
}

void lots_unmap_ended(void)
{
	struct lot **at = &lots, *lot;

	pthread_mutex_lock(&lots_lock);
	while ((lot = *at) != NULL) {
		if (lot->is_lent || has_slabs(lot) || !lot->has_to_go) {
			at = &lot->next;
			continue;
		}
		*at = lot->next;
		munmap(lot->base, lot->slabs * SLAB_BYTES);
		free(lot);
	}
	pthread_mutex_unlock(&lots_lock);
}

bool lots_let_go(void)
{
	bool all;

	lots_end_empty();
	pthread_mutex_lock(&lots_lock);
	for (struct lot *lot = lots; lot; lot = lot->next)
		lot->has_to_go = true;
	pthread_mutex_unlock(&lots_lock);
	lots_unmap_ended();
	pthread_mutex_lock(&lots_lock);
	all = !lots;
	pthread_mutex_unlock(&lots_lock);
	return all;
}
