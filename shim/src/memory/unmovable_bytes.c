#include "memory/unmovable_bytes.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/per_process.h"

/* Open addressing with linear probing; a removed entry is a tombstone until the table is rebuilt.  */
struct item {
	uint64_t key;
	uint64_t bytes;
	const struct context *context; /* that it dies with; NULL: none */
	uint8_t state; /* FREE, USED, REMOVED */
	uint8_t kind;
	uint8_t reason;
	uint8_t device;
};

enum { FREE = 0, USED = 1, REMOVED = 2 };

static OF_PROCESS pthread_mutex_t unmovable_lock = PTHREAD_MUTEX_INITIALIZER;
static OF_PROCESS struct item *items;
static OF_PROCESS size_t items_size, items_filled; /* filled: used and removed */
static OF_PROCESS _Atomic uint64_t sums[AFFINODE_MAX_GPUS][AFFINODE_UNMOVABLE_REASONS];

static size_t item_slot(uint8_t kind, uint64_t key)
{
	return (size_t)((key ^ kind) * 0x9e3779b97f4a7c15ull >> 20) & (items_size - 1);
}

static void item_put(const struct item *item)
{
	size_t i = item_slot(item->kind, item->key);

	while (items[i].state == USED)
		i = (i + 1) & (items_size - 1);
	items_filled += items[i].state == FREE;
	items[i] = *item;
}

static int grow(void)
{
	struct item *old = items;
	size_t old_size = items_size, used = 0;

	for (size_t i = 0; i < old_size; i++)
		used += old[i].state == USED;
	size_t size = 256;
	while (size < 4 * (used + 1))
		size *= 2;
	struct item *fresh = calloc(size, sizeof(*fresh));
	if (!fresh)
		return -1;
	items = fresh;
	items_size = size;
	items_filled = 0;
	for (size_t i = 0; i < old_size; i++)
		if (old[i].state == USED)
			item_put(&old[i]);
	free(old);
	return 0;
}

void unmovable_add(enum unmovable_key kind, uint64_t key, enum affinode_unmovable reason, const struct context *context,
	       uint64_t bytes)
{
	int gpu = context ? device_index(context->device) : 0;
	struct item item = {.key = key, .bytes = bytes, .context = reason == AFFINODE_UNMOVABLE_POOL ? NULL : context,
			    .state = USED, .kind = (uint8_t)kind, .reason = (uint8_t)reason, .device = (uint8_t)gpu};

	if (gpu >= (int)AFFINODE_MAX_GPUS)
		return;
	pthread_mutex_lock(&unmovable_lock);
	if (2 * (items_filled + 1) <= items_size || grow() == 0) {
		item_put(&item);
		atomic_fetch_add(&sums[gpu][reason], bytes);
	}
	pthread_mutex_unlock(&unmovable_lock);
}

static void remove_item(struct item *item)
{
	item->state = REMOVED;
	atomic_fetch_sub(&sums[item->device][item->reason], item->bytes);
}

void unmovable_drop_context(const struct context *context)
{
	pthread_mutex_lock(&unmovable_lock);
	for (size_t i = 0; i < items_size; i++)
		if (items[i].state == USED && items[i].context == context)
			remove_item(&items[i]);
	pthread_mutex_unlock(&unmovable_lock);
}

void unmovable_remove(enum unmovable_key kind, uint64_t key)
{
	pthread_mutex_lock(&unmovable_lock);
	if (items_size) {
		size_t i = item_slot((uint8_t)kind, key);

		for (; items[i].state != FREE; i = (i + 1) & (items_size - 1)) {
			if (items[i].state == USED && items[i].key == key && items[i].kind == kind) {
				remove_item(&items[i]);
				break;
			}
		}
	}
	pthread_mutex_unlock(&unmovable_lock);
}

uint64_t unmovable_bytes(int device, enum affinode_unmovable reason)
{
	return atomic_load_explicit(&sums[device][reason], memory_order_relaxed);
}
