#define _GNU_SOURCE
#include "host/lent_memory.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/per_process.h"
#include "host/slabs.h"

#define MAX_SLABS_IN_LOT 4096
#define MAX_ENDED 256

struct lot {
	unsigned char *base;
	size_t slabs, free;
	uint32_t number; /* 0: of an earlier controller */
	struct lot *next;
	unsigned char used[]; /* by slab */
};

static OF_PROCESS pthread_mutex_t lots_lock = PTHREAD_MUTEX_INITIALIZER;
static OF_PROCESS struct lot *lots;
/* To be told; one that does not fit is not told of, and the controller learns of it when the process ends.  */
static uint32_t ended[MAX_ENDED];
static OF_PROCESS unsigned ended_count;

static void note_ended(uint32_t number)
{
	if (number && ended_count < MAX_ENDED)
		ended[ended_count++] = number;
}

/* The system call itself: glibc's fstat has no version as old as our floor. 0: it cannot be told.  */
static uint64_t size_of(int descriptor)
{
	struct stat status;

	return syscall(SYS_fstat, descriptor, &status) == 0 && status.st_size > 0 ? (uint64_t)status.st_size : 0;
}

/* NULL: it cannot be used.  */
static struct lot *map_lot(int descriptor, size_t slabs)
{
	struct lot *lot;
	void *base;

	if (slabs == 0 || slabs > MAX_SLABS_IN_LOT || size_of(descriptor) < slabs * SLAB_BYTES)
		return NULL;
	lot = calloc(1, sizeof(*lot) + slabs);
	base = lot ? mmap(NULL, slabs * SLAB_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0) : MAP_FAILED;
	if (base == MAP_FAILED) {
		free(lot);
		return NULL;
	}
	madvise(base, slabs * SLAB_BYTES, MADV_DONTFORK);
	madvise(base, slabs * SLAB_BYTES, MADV_DONTDUMP);
	lot->base = base;
	lot->slabs = lot->free = slabs;
	return lot;
}

void lots_add(int descriptor, uint64_t bytes, uint32_t number)
{
	struct lot *lot = map_lot(descriptor, bytes / SLAB_BYTES);

	close(descriptor);
	pthread_mutex_lock(&lots_lock);
	if (lot) {
		lot->number = number;
		lot->next = lots;
		lots = lot;
	} else {
		log_line("a lot of %llu bytes cannot be used", (unsigned long long)bytes);
		note_ended(number);
	}
	pthread_mutex_unlock(&lots_lock);
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
	for (struct lot *lot = lots; lot; lot = lot->next)
		lot->number = 0;
	pthread_mutex_unlock(&lots_lock);
}

size_t lots_available(void)
{
	size_t n = 0;

	pthread_mutex_lock(&lots_lock);
	for (struct lot *lot = lots; lot; lot = lot->next)
		n += lot->free;
	pthread_mutex_unlock(&lots_lock);
	return n;
}

uint64_t lots_bytes(void)
{
	uint64_t n = 0;

	pthread_mutex_lock(&lots_lock);
	for (struct lot *lot = lots; lot; lot = lot->next)
		n += lot->slabs * SLAB_BYTES;
	pthread_mutex_unlock(&lots_lock);
	return n;
}

unsigned char *lots_take(void)
{
	unsigned char *base = NULL;

	pthread_mutex_lock(&lots_lock);
	for (struct lot *lot = lots; lot && !base; lot = lot->next)
		for (size_t i = 0; i < lot->slabs && lot->free && !base; i++)
			if (!lot->used[i]) {
				lot->used[i] = 1;
				lot->free--;
				base = lot->base + i * SLAB_BYTES;
			}
	pthread_mutex_unlock(&lots_lock);
	return base;
}

void lots_give(unsigned char *base)
{
	struct lot *lot;

	pthread_mutex_lock(&lots_lock);
	lot = lots;
	while (lot && (base < lot->base || base >= lot->base + lot->slabs * SLAB_BYTES))
		lot = lot->next;
	if (lot) {
		lot->used[(size_t)(base - lot->base) / SLAB_BYTES] = 0;
		lot->free++;
	}
	pthread_mutex_unlock(&lots_lock);
}

void lots_end_empty(void)
{
	struct lot **at = &lots, *lot;

	pthread_mutex_lock(&lots_lock);
	while ((lot = *at) != NULL) {
		if (lot->free < lot->slabs) {
			at = &lot->next;
			continue;
		}
		*at = lot->next;
		note_ended(lot->number);
		munmap(lot->base, lot->slabs * SLAB_BYTES);
		free(lot);
	}
	pthread_mutex_unlock(&lots_lock);
}
