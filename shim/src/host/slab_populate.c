/* An order of slabs carried out: taken of lots or mapped, touched and registered by several threads.  */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "driver/real_driver.h"
#include "base/per_process.h"
#include "host/lent_memory.h"
#include "host/memory_limits.h"
#include "host/slabs_internal.h"

#define MAX_THREADS 8
#define PAGE_BYTES 4096
/* With what the driver keeps beside what is registered: eight bytes a page, seen with an H200, and as much again.  */
#define SLAB_TAKES (SLAB_BYTES + SLAB_BYTES / 256)
#define SLABS_A_LOOK 32

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* The order that is being made.  */
static struct {
	const struct slab_order *order;
	CUcontext context; /* the order's: slots are taken after its end, too */
	unsigned char *base; /* of the private slabs to be made */
	size_t lot_slabs, count;
	_Atomic size_t next; /* to be made next: lots' first */
	_Atomic int error;
	uint64_t allowed; /* slabs, before memory is looked at again */
	struct slab **made; /* by index */
	void (*work)(void); /* of each thread */
	unsigned threads;
} making;

/* Guards `making.allowed`.  */
static OF_PROCESS pthread_mutex_t looking_lock = PTHREAD_MUTEX_INITIALIZER;

CUcontext slabs_registered_in(void)
{
	return making.context;
}

/* Reserve address space for `size` bytes on a huge page's boundary; NULL if none is left.  */
static unsigned char *map_aligned(size_t size)
{
	unsigned char *base = mmap(NULL, size + CHUNK_BYTES, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	size_t before;

	if (base == MAP_FAILED)
		return NULL;
	before = (CHUNK_BYTES - (uintptr_t)base % CHUNK_BYTES) % CHUNK_BYTES;
	if (before)
		munmap(base, before);
	munmap(base + before + size, CHUNK_BYTES - before);
	base += before;
	/* Before it is touched: a fork that had to copy page tables of pinned gigabytes took 19 s.  */
	madvise(base, size, MADV_DONTFORK);
	madvise(base, size, MADV_DONTDUMP);
	madvise(base, size, MADV_HUGEPAGE);
	return base;
}

static int touch(unsigned char *base)
{
	if (madvise(base, SLAB_BYTES, MADV_POPULATE_WRITE) == 0)
		return 0;
	if (errno == ENOMEM || errno == EHWPOISON)
		return -ENOMEM;
	/* Before Linux 5.14.  */
	for (size_t i = 0; i < SLAB_BYTES; i += PAGE_BYTES)
		((volatile unsigned char *)base)[i] = 0;
	return 0;
}

/* Return 0 if one more slab may be made, or a negative errno. A look at the free memory costs more than touching a slab where
 * many threads look at once, so one look allows several slabs, fewer where memory is short.  */
static int room_for_one(void)
{
	uint64_t left;
	int error = 0;

	pthread_mutex_lock(&looking_lock);
	if (making.allowed == 0) {
		left = host_memory_left();
		left = left < HOST_MEMORY_RESERVE ? 0 : (left - HOST_MEMORY_RESERVE) / 8 / SLAB_BYTES;
		making.allowed = left < SLABS_A_LOOK ? left : SLABS_A_LOOK;
	}
	if (making.allowed)
		making.allowed--;
	else
		error = -ENOMEM;
	pthread_mutex_unlock(&looking_lock);
	return error;
}

/* Make one slab of the order; NULL and *error if it cannot be made.  */
static struct slab *make_slab(size_t index, int *error)
{
	unsigned char *base;
	struct slab *slab;

	if (index < making.lot_slabs) {
		*error = making.order->stop() ? -EAGAIN : 0;
		slab = *error ? NULL : lots_take();
		if (!*error && !slab)
			*error = -ENOMEM;
	} else {
		base = making.base + (index - making.lot_slabs) * SLAB_BYTES;
		slab = calloc(1, sizeof(*slab));
		*error = !slab ? -ENOMEM : making.order->stop() ? -EAGAIN : room_for_one();
		if (!*error)
			*error = touch(base);
		if (*error) {
			munmap(base, SLAB_BYTES);
			free(slab);
			return NULL;
		}
		slab->base = base;
	}
	if (slab)
		slab->unpinned = !making.order->context;
	return slab;
}

/* Make slabs one after the other, until all are made or one cannot be.  */
static void make_slabs(void)
{
	size_t index;

	while (!atomic_load(&making.error) && (index = atomic_fetch_add(&making.next, 1)) < making.count) {
		int error;
		struct slab *slab = make_slab(index, &error);

		if (slab) {
			making.made[index] = slab;
			slab_add(slab);
		} else {
			atomic_store(&making.error, error);
		}
	}
}

static void register_slabs(void)
{
	size_t index;

	while (!atomic_load(&making.error) && (index = atomic_fetch_add(&making.next, 1)) < making.count) {
		if (making.order->stop())
			atomic_store(&making.error, -EAGAIN);
		else
			slab_register(making.made[index], making.order->context);
	}
}

static void *worker_main(void *unused)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	(void)unused;
	/* A capture elsewhere must not be broken by what is registered here.  */
	driver.cuThreadExchangeStreamCaptureMode(&mode);
	driver.cuCtxSetCurrent(making.order->context);
	making.work();
	driver.cuCtxSetCurrent(NULL);
	return NULL;
}

/* Do the work with several threads, this one included: half as many as there are CPUs at most, and no more than there are slabs
 * to make.  */
static void with_threads(void (*work)(void))
{
	pthread_t threads[MAX_THREADS];
	unsigned n = host_cpus() / 2, started = 0;

	n = n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
	making.threads = n > making.count ? (unsigned)making.count : n;
	making.work = work;
	atomic_store(&making.next, 0);
	while (started + 1 < making.threads && pthread_create(&threads[started], NULL, worker_main, NULL) == 0)
		started++;
	worker_main(NULL);
	while (started > 0)
		pthread_join(threads[--started], NULL);
}

/* Give address space back that was not used.  */
static void unmap_unmade(size_t private_slabs)
{
	size_t begun = atomic_load(&making.next);

	begun = begun < making.lot_slabs ? 0 : begun - making.lot_slabs;
	if (begun < private_slabs)
		munmap(making.base + begun * SLAB_BYTES, (private_slabs - begun) * SLAB_BYTES);
}

int slabs_make(const struct slab_order *order)
{
	size_t have = slabs_rewind(), missing, private_slabs, allowed;
	int error;

	slabs_look_at_registrations();
	making.order = order;
	making.context = order->context;
	if (order->slots <= have)
		return 0;
	missing = (order->slots - have + SLOTS_IN_SLAB - 1) / SLOTS_IN_SLAB;
	making.lot_slabs = lots_available();
	making.lot_slabs = making.lot_slabs < missing ? making.lot_slabs : missing;
	private_slabs = missing - making.lot_slabs;
	allowed = order->budget / SLAB_TAKES; /* what is not registered now is later */
	if (private_slabs > allowed) {
		if (have + (making.lot_slabs + allowed) * SLOTS_IN_SLAB < order->at_least)
			return -ENOMEM;
		private_slabs = allowed;
		missing = making.lot_slabs + private_slabs;
		if (missing == 0)
			return 0;
	}
	making.base = private_slabs ? map_aligned(private_slabs * SLAB_BYTES) : NULL;
	if (private_slabs && !making.base)
		return -ENOMEM;
	host_memory_prefer(making.base, private_slabs * SLAB_BYTES, order->node);
	making.count = missing;
	making.allowed = 0;
	making.made = calloc(missing, sizeof(struct slab *));
	atomic_store(&making.error, making.made ? 0 : -ENOMEM);
	/* All touched before any is registered: the two at once hinder each other.  */
	with_threads(make_slabs);
	if (private_slabs)
		unmap_unmade(private_slabs);
	if (order->context)
		with_threads(register_slabs);
	free(making.made);
	error = atomic_load(&making.error);
	have = slabs_rewind();
	return error == -ENOMEM && have >= order->at_least ? 0 : error;
}

size_t slabs_take_lots(void)
{
	struct slab *slab;
	size_t n = 0;

	while ((slab = lots_take()) != NULL) {
		slab->unpinned = true;
		slab_add(slab);
		n++;
	}
	return n;
}

static bool never_stop(void)
{
	return false;
}

bool slabs_prepare_lot(CUcontext context)
{
	struct slab_order order = {.context = context, .stop = never_stop};
	struct slab *slab;
	int error;

	if (lots_available() == 0)
		return false;
	making.order = &order;
	making.context = context;
	making.lot_slabs = making.count = 1;
	driver.cuCtxSetCurrent(context);
	slab = make_slab(0, &error);
	if (slab) {
		if (context)
			slab_register(slab, context);
		slab_add(slab);
	}
	driver.cuCtxSetCurrent(NULL);
	return slab != NULL;
}
