/* Host memory for copies of device memory: slabs of huge pages, cut into slots of one chunk, registered with the
 * driver so that the GPU copies at the speed of its link. Of the mover's thread alone, but for what says otherwise.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "driver/cuda_types.h"
#include "host/chunk.h"

#define SLOTS_IN_SLAB 16
#define SLAB_BYTES (SLOTS_IN_SLAB * CHUNK_BYTES)

struct slab {
	unsigned char *base;
	struct lot *lot;      /* shared memory that the controller touched and lent; NULL: mapped by this process for itself */
	uint32_t used;        /* a bit for each slot */
	bool away;            /* was given back with its lot: not to be touched, though registered still; no slot is free */
	CUcontext registered; /* the context it was registered in; NULL: copies go by the ring (bounce_ring.h) */
	bool unpinned;        /* is not registered for now: copies are under way, or the context is to leave the GPU */
	bool refused;         /* the driver would not register it, and is not asked again */
	struct slab *next;
};

struct host_slot {
	struct slab *slab;
	unsigned index;
};

static inline unsigned char *slot_memory(const struct host_slot *slot)
{
	return slot->slab->base + slot->index * CHUNK_BYTES;
}

struct slab_order {
	size_t slots;       /* how many are wanted, those that are free already included */
	size_t at_least;    /* how many suffice where memory is short */
	uint64_t budget;    /* the most new bytes beside lots; UINT64_MAX: any */
	int node;           /* the NUMA node to prefer; -1: any */
	CUcontext context;  /* where new slabs are registered; NULL: they stay unregistered */
	bool (*stop)(void); /* whether to make no more; asked between slabs, by any thread */
};

/* Make slabs until there are enough free slots: of lots first, then of private memory, touched and registered by several
 * threads. Return 0, -EAGAIN if `stop` said so, or -ENOMEM if host memory is short. What was made by then stays.
 *
 * It is not called while copies are under way, since registering waits for them (seen on an H200: 32 GiB took 5.5 s that way, and
 * 1.7 s one after the other).  */
int slabs_make(const struct slab_order *order);

/* Make slabs of all lots that came since, without registering them, so that it may be called while copies are under way. Return how
 * many.  */
size_t slabs_take_lots(void);

/* Return how many slots are free.  */
size_t slots_free(void);

/* Take the next free slots that lie side by side in one slab, `want` at most. Return how many; 0 if none is left.  */
size_t slots_take(size_t want, struct host_slot *first);

/* Make one slab of a lot ready ahead of its use, and register it in `context` unless that is NULL. Return false if there was none
 * to make.  */
bool slabs_prepare_lot(CUcontext context);

/* Register in `context` slabs that have contents and are not registered, `most` at most; before each, `stop` is asked. Return false
 * if no more are left but those that the driver refused.  */
bool slabs_register_some(CUcontext context, size_t most, bool (*stop)(void));

/* Give all registrations up, and let no thread make them again. Contents and slots stay. Between slabs `stop` is asked.  */
void slabs_unregister(bool (*stop)(void));

void slot_give(const struct host_slot *slot);

/* Return whether any slab has no used slot.  */
bool slabs_any_unused(void);

/* Give slabs without any used slot back to the system. Return false if some are left, since a context is being ended. At context
 * depth slabs that are registered still are left too: the driver would come back to pages that are gone.  */
bool slabs_release_unused(void);

/* Do the same while copies are under way and another process waits for the memory. The controller can lend only whole lots, so the slabs
 * of a lot are released together, once all are unused: unregistering waits for all copies under way, and takes half a millisecond a
 * slab (H200).  */
void slabs_hand_over(void);

/* End the slabs that stayed with lots which have to be unmapped.  */
void slabs_release_forgotten(void);

/* Return the bytes in all slabs, in those of lots, and in used slots. Called by any thread.  */
size_t slabs_bytes(void);
size_t slabs_lot_bytes(void);
size_t slots_bytes(void);

/* Note that a context is gone, and perhaps registrations with it. Called by any thread.  */
void slabs_forget_registrations(void);
