#define _GNU_SOURCE
#include "slabs.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checkpoint.h"
#include "contexts.h"
#include "driver.h"
#include "host_memory.h"
#include "lots.h"
#include "log.h"

#define MAX_THREADS 8
#define PAGE_BYTES 4096
/* With what the driver keeps beside what is registered: eight bytes a page, seen with an H200, and as much again.  */
#define SLAB_TAKES (SLAB_BYTES + SLAB_BYTES / 256)
#define SLABS_A_LOOK 32
#define ALL_USED ((1u << SLOTS_IN_SLAB) - 1)

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Guards the list and the used slots: frees give slots back from any thread.  */
static pthread_mutex_t slabs_lock = PTHREAD_MUTEX_INITIALIZER;
static struct slab *slabs, *cursor;
static _Atomic size_t bytes_in_slabs, bytes_in_slots;
static _Atomic bool registrations_are_old;

/* The order under way.  */
static struct {
	const struct slab_order *order;
	unsigned char *base; /* of the private slabs to be made */
	size_t lot_slabs, count;
	_Atomic size_t next; /* to be made next: lots' first */
	_Atomic int error;
	uint64_t allowed; /* slabs, before memory is looked at again */
	struct slab **made; /* by index */
	void (*work)(void); /* of each thread */
	unsigned threads;
} making;

size_t slabs_bytes(void)
{
	return atomic_load(&bytes_in_slabs);
}

size_t slots_bytes(void)
{
	return atomic_load(&bytes_in_slots);
}

/* Address space for `size` bytes, on a huge page's boundary; NULL: none left.  */
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

static void register_slab(struct slab *slab, CUcontext context)
{
	CUresult result = driver.cuMemHostRegister(slab->base, SLAB_BYTES, CU_MEMHOSTREGISTER_PORTABLE);

	if (result == CUDA_SUCCESS || result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
		slab->registered = context;
	else
		slab->unpinned = true;
}

/* Whether one more may be taken. A look costs more than touching a slab where many threads look at once, so that one look
 * allows several, less where memory is short.  */
static int room_for_one(void)
{
	uint64_t left, reserve = host_memory_reserve();
	int error = 0;

	pthread_mutex_lock(&slabs_lock);
	if (making.allowed == 0) {
		left = host_memory_left();
		left = left < reserve ? 0 : (left - reserve) / 8 / SLAB_BYTES;
		making.allowed = left < SLABS_A_LOOK ? left : SLABS_A_LOOK;
	}
	if (making.allowed)
		making.allowed--;
	else
		error = -ENOMEM;
	pthread_mutex_unlock(&slabs_lock);
	return error;
}

/* A slab of the order, whole; NULL and *error: it was not to be.  */
static struct slab *make_slab(size_t index, int *error)
{
	bool is_lot = index < making.lot_slabs;
	struct slab *slab = calloc(1, sizeof(*slab));

	*error = !slab ? -ENOMEM : making.order->stop() ? -EAGAIN : is_lot ? 0 : room_for_one();
	if (!*error) {
		slab->source = is_lot ? SLAB_LOT : SLAB_PRIVATE;
		slab->unpinned = !making.order->context;
		slab->base = is_lot ? lots_take() : making.base + (index - making.lot_slabs) * SLAB_BYTES;
		*error = is_lot ? (slab->base ? 0 : -ENOMEM) : touch(slab->base);
	}
	if (*error) {
		if (!is_lot)
			munmap(making.base + (index - making.lot_slabs) * SLAB_BYTES, SLAB_BYTES);
		free(slab);
		return NULL;
	}
	atomic_fetch_add(&bytes_in_slabs, SLAB_BYTES);
	return slab;
}

static void add_slab(struct slab *slab)
{
	pthread_mutex_lock(&slabs_lock);
	slab->next = slabs;
	slabs = slab;
	pthread_mutex_unlock(&slabs_lock);
}

/* Slabs in turn, until all are made or one cannot be.  */
static void make_slabs(void)
{
	size_t index;

	while (!atomic_load(&making.error) && (index = atomic_fetch_add(&making.next, 1)) < making.count) {
		int error;
		struct slab *slab = make_slab(index, &error);

		if (slab) {
			making.made[index] = slab;
			add_slab(slab);
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
			register_slab(making.made[index], making.order->context);
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

/* Begin to give out slots from the list's start; how many are free.  */
static size_t rewind_cursor(void)
{
	size_t n = 0;

	pthread_mutex_lock(&slabs_lock);
	cursor = slabs;
	for (struct slab *slab = slabs; slab; slab = slab->next)
		n += SLOTS_IN_SLAB - (size_t)__builtin_popcount(slab->used);
	pthread_mutex_unlock(&slabs_lock);
	return n;
}

/* No more threads than half the CPUs, nor than there are slabs to make; this one is one of them.  */
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

static void look_at_registrations(void)
{
	if (!atomic_exchange(&registrations_are_old, false))
		return;
	/* The mover alone changes the list. A context of another device may live on, and one that was reset may have come
	 * back under the same handle without the registration: registering again tells, and mends it.  */
	for (struct slab *slab = slabs; slab; slab = slab->next) {
		CUcontext context = slab->registered;

		slab->registered = NULL;
		slab->unpinned = false;
		if (context && context_is_known(context) && driver.cuCtxSetCurrent(context) == CUDA_SUCCESS)
			register_slab(slab, context);
	}
}

/* Give address space back that nobody came to.  */
static void unmap_unmade(size_t private_slabs)
{
	size_t begun = atomic_load(&making.next);

	begun = begun < making.lot_slabs ? 0 : begun - making.lot_slabs;
	if (begun < private_slabs)
		munmap(making.base + begun * SLAB_BYTES, (private_slabs - begun) * SLAB_BYTES);
}

int slabs_make(const struct slab_order *order)
{
	size_t have = rewind_cursor(), missing, private_slabs;

	look_at_registrations();
	making.order = order;
	if (order->slots <= have)
		return 0;
	missing = (order->slots - have + SLOTS_IN_SLAB - 1) / SLOTS_IN_SLAB;
	making.lot_slabs = lots_available();
	making.lot_slabs = making.lot_slabs < missing ? making.lot_slabs : missing;
	private_slabs = missing - making.lot_slabs;
	if (private_slabs > order->budget / (order->context ? SLAB_TAKES : SLAB_BYTES))
		return -ENOMEM;
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
	rewind_cursor();
	return atomic_load(&making.error);
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
	making.lot_slabs = making.count = 1;
	driver.cuCtxSetCurrent(context);
	slab = make_slab(0, &error);
	if (slab) {
		if (context)
			register_slab(slab, context);
		add_slab(slab);
	}
	driver.cuCtxSetCurrent(NULL);
	return slab != NULL;
}

/* From the cursor's slab, or from one after it that has a free slot; 0: none.  */
static size_t take_from_cursor(size_t want, struct host_slot *first)
{
	unsigned run = 0;

	pthread_mutex_lock(&slabs_lock);
	while (cursor && cursor->used == ALL_USED)
		cursor = cursor->next;
	if (cursor) {
		first->slab = cursor;
		first->index = (unsigned)__builtin_ctz(~cursor->used);
		while (run < want && first->index + run < SLOTS_IN_SLAB &&
		       !(cursor->used & 1u << (first->index + run)))
			cursor->used |= 1u << (first->index + run++);
	}
	pthread_mutex_unlock(&slabs_lock);
	atomic_fetch_add(&bytes_in_slots, run * CHUNK_BYTES);
	return run;
}

size_t slots_take(size_t want, struct host_slot *first)
{
	size_t run = take_from_cursor(want, first);

	if (run && making.order->context && !first->slab->registered && !first->slab->unpinned)
		register_slab(first->slab, making.order->context);
	return run;
}

void slot_give(const struct host_slot *slot)
{
	pthread_mutex_lock(&slabs_lock);
	slot->slab->used &= ~(1u << slot->index);
	pthread_mutex_unlock(&slabs_lock);
	atomic_fetch_sub(&bytes_in_slots, CHUNK_BYTES);
}

/* Memory that the driver still holds must not go: a copy may be on its way to it. Where a context is gone its
 * registrations are.  */
static bool unregister(struct slab *slab)
{
	CUresult result;

	if (!slab->registered || !context_is_known(slab->registered)) {
		slab->registered = NULL;
		return true;
	}
	result = driver.cuCtxSetCurrent(slab->registered);
	if (result == CUDA_SUCCESS)
		result = driver.cuMemHostUnregister(slab->base);
	if (result == CUDA_SUCCESS || result == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
		slab->registered = NULL;
	return !slab->registered;
}

void slabs_unregister(bool (*stop)(void))
{
	for (struct slab *slab = slabs; slab && !stop(); slab = slab->next)
		slab->unpinned = unregister(slab);
	driver.cuCtxSetCurrent(NULL);
}

/* False: not while a context is being ended.  */
static bool release(struct slab *slab)
{
	bool kept = contexts_keep(), gone = kept && unregister(slab);

	if (kept)
		contexts_let_end();
	if (!gone) {
		if (kept)
			log_line("cuMemHostUnregister failed: a slab stays");
		add_slab(slab);
		return kept;
	}
	if (slab->source == SLAB_LOT)
		lots_give(slab->base);
	else
		munmap(slab->base, SLAB_BYTES);
	atomic_fetch_sub(&bytes_in_slabs, SLAB_BYTES);
	free(slab);
	return true;
}

bool slabs_any_unused(void)
{
	bool any = false;

	pthread_mutex_lock(&slabs_lock);
	for (struct slab *slab = slabs; slab && !any; slab = slab->next)
		any = slab->used == 0;
	pthread_mutex_unlock(&slabs_lock);
	return any;
}

bool slabs_release_unused(void)
{
	struct slab **at = &slabs, *unused = NULL;
	bool all = true, out = checkpoint_is_out();

	if (!out && contexts_keep()) {
		look_at_registrations();
		contexts_let_end();
	}
	pthread_mutex_lock(&slabs_lock);
	while (*at) {
		struct slab *slab = *at;

		if (slab->used || (out && slab->registered)) {
			at = &slab->next;
		} else {
			*at = slab->next;
			slab->next = unused;
			unused = slab;
		}
	}
	cursor = NULL;
	pthread_mutex_unlock(&slabs_lock);
	while (unused) {
		struct slab *slab = unused;

		unused = slab->next;
		all = release(slab) && all;
	}
	lots_end_empty();
	return all;
}

void slabs_forget_registrations(void)
{
	atomic_store(&registrations_are_old, true);
}

void slabs_reset_in_child(void)
{
	pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

	/* The memory is not in the child's address space: MADV_DONTFORK.  */
	memcpy(&slabs_lock, &fresh, sizeof(fresh));
	slabs = cursor = NULL;
	atomic_store(&bytes_in_slabs, 0);
	atomic_store(&bytes_in_slots, 0);
}
