#include "memory/peer_access.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/growable.h"
#include "base/per_process.h"
#include "memory/blocks/block.h"

struct pair {
	struct context *accessor, *owner;
};

static OF_PROCESS pthread_mutex_t peers_lock = PTHREAD_MUTEX_INITIALIZER;
static OF_PROCESS struct pair *pairs;
static OF_PROCESS size_t pairs_count, pairs_size;

/* Tell the blocks which devices may reach the owner's memory. Memory belongs to a device, and so does access to it: one context
 * that may reach it is enough. Called with the lock held.  */
static void settle(struct device *owner)
{
	uint32_t peers = 0;

	for (size_t i = 0; i < pairs_count; i++)
		if (pairs[i].owner->device == owner && pairs[i].accessor->device->ordinal < 32)
			peers |= 1u << pairs[i].accessor->device->ordinal;
	blocks_set_peers(owner, peers);
}

void peers_enabled(struct context *accessor, struct context *owner)
{
	if (accessor->device == owner->device)
		return;
	pthread_mutex_lock(&peers_lock);
	if (array_has_room(pairs, pairs_count, pairs_size))
		pairs[pairs_count++] = (struct pair){accessor, owner};
	settle(owner->device);
	pthread_mutex_unlock(&peers_lock);
}

/* Take out the pairs of two contexts, or, where one is NULL, of one with any.  */
static void drop(CUcontext accessor, CUcontext owner)
{
	bool found = true;

	pthread_mutex_lock(&peers_lock);
	while (found) {
		found = false;
		for (size_t i = 0; i < pairs_count && !found; i++) {
			struct device *device = pairs[i].owner->device;

			found = (!accessor || pairs[i].accessor->handle == accessor) &&
				(!owner || pairs[i].owner->handle == owner);
			if (found) {
				pairs[i] = pairs[--pairs_count];
				settle(device);
			}
		}
	}
	pthread_mutex_unlock(&peers_lock);
}

void peers_disabled(CUcontext accessor, CUcontext owner)
{
	if (accessor && owner)
		drop(accessor, owner);
}

void peers_drop_context(CUcontext handle)
{
	drop(handle, NULL);
	drop(NULL, handle);
}
