#include "host/slabs.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/log.h"
#include "base/per_process.h"
#include "gpu/contexts.h"
#include "host/lent_memory.h"
#include "host/slabs_internal.h"
#include "state/depth.h"

#define ALL_USED ((1u << SLOTS_IN_SLAB) - 1)

/* Guards the list and the used slots: frees give slots back from any thread.  */
static OF_PROCESS pthread_mutex_t slabs_lock = PTHREAD_MUTEX_INITIALIZER;
static OF_PROCESS struct slab *slabs, *cursor;
static OF_PROCESS _Atomic size_t bytes_in_slabs, bytes_in_lots, bytes_in_slots; /* of slabs, those in lots */

size_t slabs_bytes(void)
{
	return atomic_load(&bytes_in_slabs);
}

size_t slabs_lot_bytes(void)
{
	return atomic_load(&bytes_in_lots);
}

size_t slots_bytes(void)
{
	return atomic_load(&bytes_in_slots);
}

struct slab *slabs_first(void)
{
	return slabs;
}

static void into_list(struct slab *slab)
{
	pthread_mutex_lock(&slabs_lock);
	slab->next = slabs;
	slabs = slab;
	pthread_mutex_unlock(&slabs_lock);
}

void slab_add(struct slab *slab)
{
	atomic_fetch_add(&bytes_in_slabs, SLAB_BYTES);
	if (slab->lot)
		atomic_fetch_add(&bytes_in_lots, SLAB_BYTES);
	if (!slab->away)
		return into_list(slab);
	pthread_mutex_lock(&slabs_lock);
	slab->away = false;
	slab->used = 0;
	pthread_mutex_unlock(&slabs_lock);
}

static size_t count_free(void)
{
	size_t n = 0;

	for (struct slab *slab = slabs; slab; slab = slab->next)
		n += SLOTS_IN_SLAB - (size_t)__builtin_popcount(slab->used);
	return n;
}

size_t slots_free(void)
{
	size_t n;

	pthread_mutex_lock(&slabs_lock);
	n = count_free();
	pthread_mutex_unlock(&slabs_lock);
	return n;
}

static struct slab *merged(struct slab *one, struct slab *other)
{
	struct slab *list = NULL, **end = &list;

	while (one && other) {
		struct slab **first = one->base < other->base ? &one : &other;

		*end = *first;
		end = &(*end)->next;
		*first = *end;
	}
	*end = one ? one : other;
	return list;
}

/* Sort the first `count` slabs of a list by address; *rest are those after them.  */
static struct slab *sorted(struct slab *list, size_t count, struct slab **rest)
{
	struct slab *one, *other;

	if (count < 2) {
		*rest = list ? list->next : NULL;
		if (list)
			list->next = NULL;
		return list;
	}
	one = sorted(list, count / 2, &other);
	other = sorted(other, count - count / 2, rest);
	return merged(one, other);
}

/* Slabs that threads made are sorted by address: slots that are taken one after the other, and given back so, are then of few
 * lots.  */
size_t slabs_rewind(void)
{
	size_t n, count = 0;
	struct slab *rest;

	pthread_mutex_lock(&slabs_lock);
	for (struct slab *slab = slabs; slab; slab = slab->next)
		count++;
	slabs = sorted(slabs, count, &rest);
	cursor = slabs;
	n = count_free();
	pthread_mutex_unlock(&slabs_lock);
	return n;
}

/* Return the cursor's slab, or the next one that has a free slot; those before it come last. NULL if none has.  */
static struct slab *move_cursor(void)
{
	for (int round = 0; round < 2; round++) {
		while (cursor && cursor->used == ALL_USED)
			cursor = cursor->next;
		if (cursor)
			break;
		cursor = slabs;
	}
	return cursor;
}

/* 0: none is free.  */
static size_t take_from_cursor(size_t want, struct host_slot *first)
{
	unsigned run = 0;

	pthread_mutex_lock(&slabs_lock);
	if (move_cursor()) {
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

	if (run && slabs_registered_in() && !first->slab->registered && !first->slab->unpinned && !first->slab->refused)
		slab_register(first->slab, slabs_registered_in());
	return run;
}

void slot_give(const struct host_slot *slot)
{
	pthread_mutex_lock(&slabs_lock);
	slot->slab->used &= ~(1u << slot->index);
	pthread_mutex_unlock(&slabs_lock);
	atomic_fetch_sub(&bytes_in_slots, CHUNK_BYTES);
}

static void uncount(const struct slab *slab)
{
	atomic_fetch_sub(&bytes_in_slabs, SLAB_BYTES);
	if (slab->lot)
		atomic_fetch_sub(&bytes_in_lots, SLAB_BYTES);
}

/* Give a slab back. Return false if a context is being ended, and it has to stay for now.  */
static bool release(struct slab *slab)
{
	bool kept = contexts_keep(), gone = kept && slab_unregister(slab);

	if (kept)
		contexts_let_end();
	if (!gone) {
		if (kept)
			log_line("the driver may still use a slab: it stays");
		into_list(slab);
		return kept;
	}
	if (!slab->away)
		uncount(slab);
	if (slab->lot)
		lots_give(slab);
	else
		munmap(slab->base, SLAB_BYTES);
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

enum released { ALL_UNUSED, NO_PARTS_OF_LOTS, ONLY_FORGOTTEN };

/* Return whether an unused slab has to be given back now. One of a lot may stay with the lot, and is given back later.  */
static bool has_to_go(struct slab *slab, enum released which)
{
	if (slab->away)
		return lots_has_to_go(slab);
	if (which == ONLY_FORGOTTEN || slab->used)
		return false;
	if (!slab->lot)
		return true;
	if (!lots_keep(slab))
		return which == ALL_UNUSED || lots_is_unused(slab);
	uncount(slab);
	slab->away = true;
	slab->used = ALL_USED;
	return false;
}

static bool release_those(enum released which)
{
	struct slab **at = &slabs, *unused = NULL;
	bool all = true, out = checkpoint_is_out();

	if (!out && contexts_keep()) {
		slabs_look_at_registrations();
		contexts_let_end();
	}
	pthread_mutex_lock(&slabs_lock);
	while (*at) {
		struct slab *slab = *at;

		if ((out && slab->registered) || !has_to_go(slab, which)) {
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
	if (which != ONLY_FORGOTTEN)
		lots_end_empty();
	lots_unmap_ended();
	return all;
}

bool slabs_release_unused(void)
{
	return release_those(ALL_UNUSED);
}

void slabs_hand_over(void)
{
	release_those(NO_PARTS_OF_LOTS);
}

void slabs_release_forgotten(void)
{
	release_those(ONLY_FORGOTTEN);
}
