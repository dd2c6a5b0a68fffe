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
	bool away;            /* given back with its lot and not to be touched, but registered still; no slot is free */
	CUcontext registered; /* the context it was registered in; NULL: copies go the slow way */
	bool unpinned;        /* not to be registered as it is used: beside copies, or since the context is to leave the GPU */
	bool refused;         /* the driver would not register it */
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
	size_t slots;       /* wanted in all, those that are free already included */
	size_t at_least;    /* so many will do, where memory is short */
	uint64_t budget;    /* new bytes allowed beside lots; UINT64_MAX: any */
	int node;           /* NUMA node to prefer; -1: any */
	CUcontext context;  /* to register in; NULL: what is new stays unregistered */
	bool (*stop)(void); /* asked between slabs, by any thread */
};

/* Make slabs until there are enough free slots: of lots first, then of private memory, touched and registered by several
 * threads. 0, -EAGAIN: `stop` said so, or -ENOMEM: host memory is short; what was made by then stays.
 *
 * Not beside the copies: registering waits for copies under way (seen on an H200: 32 GiB took 5.5 s that way, and 1.7 s
 * one after the other).  */
int slabs_make(const struct slab_order *order);

/* Take what lots have that came since, as it is: nothing is registered. How many slabs; they can be had beside copies.  */
size_t slabs_take_lots(void);

/* Free slots.  */
size_t slots_free(void);

/* The next free slots, side by side in one slab, `want` at most: how many, 0: none is left.  */
size_t slots_take(size_t want, struct host_slot *first);

/* Make a slab of a lot ready ahead of its use, registered in `context` unless that is NULL; false: there is nothing
 * to do.  */
bool slabs_prepare_lot(CUcontext context);

/* Register in `context` slabs that have contents and are not registered, `most` at most; before each `stop` is asked. False: there
 * are no more, but for those that the driver would not register.  */
bool slabs_register_some(CUcontext context, size_t most, bool (*stop)(void));

/* Give registrations up, and let no thread make them again: contents and slots stay. Between slabs `stop` is asked.  */
void slabs_unregister(bool (*stop)(void));

void slot_give(const struct host_slot *slot);

/* Whether any slab is without a used slot.  */
bool slabs_any_unused(void);

/* Give slabs without any used slot back to the system; false: not all, since a context is being ended. Off the GPU
 * too, but for what is registered with the driver still, which would come back to pages that are gone.  */
bool slabs_release_unused(void);

/* The same beside copies, while another process waits for the memory. The controller can lend only whole lots, so a lot's slabs are
 * released together, when all are unused: unregistering waits for all copies under way, and takes half a millisecond a slab (H200).  */
void slabs_hand_over(void);

/* Give back what stayed of lots that have to go.  */
void slabs_release_forgotten(void);

/* Bytes in all slabs, in those of lots, and in used slots. Callable by any thread.  */
size_t slabs_bytes(void);
size_t slabs_lot_bytes(void);
size_t slots_bytes(void);

/* A context is gone, and perhaps registrations with it. By any thread.  */
void slabs_forget_registrations(void);
