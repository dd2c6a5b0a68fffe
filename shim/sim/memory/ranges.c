/* Sorted arrays of ranges under one lock.  */
#include "memory/ranges.h"

#include <stdlib.h>
#include <string.h>

#include "base/growable.h"
#include "context/context.h"

struct range_table {
	struct range **items;
	unsigned count, capacity;
};

struct range_table memory_ranges, reserved_ranges;
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static uint64_t last_id;

void ranges_read(void)
{
	pthread_rwlock_rdlock(&lock);
}

void ranges_write(void)
{
	pthread_rwlock_wrlock(&lock);
}

void ranges_done(void)
{
	pthread_rwlock_unlock(&lock);
}

/* Index of the first range that ends behind the address.  */
static unsigned position(const struct range_table *table, uint64_t address)
{
	unsigned low = 0, high = table->count;

	while (low < high) {
		unsigned middle = (low + high) / 2;
		const struct range *range = table->items[middle];

		if (range->start + range->size <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct range *ranges_from(struct range_table *table, uint64_t address)
{
	unsigned at = position(table, address);

	return at < table->count ? table->items[at] : NULL;
}

struct range *ranges_find(struct range_table *table, uint64_t address)
{
	struct range *range = ranges_from(table, address);

	return range && range->start <= address ? range : NULL;
}

uint64_t ranges_new_id(void)
{
	return ++last_id;
}

bool ranges_add(struct range_table *table, const struct range *range)
{
	unsigned at = position(table, range->start);
	struct range *copy;

	if (!array_has_room(table->items, table->count, table->capacity))
		return false;
	copy = malloc(sizeof(*copy));
	if (!copy)
		return false;
	*copy = *range;
	copy->id = ranges_new_id();
	memmove(table->items + at + 1, table->items + at, (table->count - at) * sizeof(*table->items));
	table->items[at] = copy;
	table->count++;
	return true;
}

bool ranges_remove(struct range_table *table, uint64_t start)
{
	unsigned at = position(table, start);

	if (at == table->count || table->items[at]->start != start)
		return false;
	free(table->items[at]);
	table->count--;
	memmove(table->items + at, table->items + at + 1, (table->count - at) * sizeof(*table->items));
	return true;
}

/* Managed memory moves to the GPU that touches it; where there is no room it is used in place, as if it had been evicted.  */
static void fault_in(struct range *range, CUcontext context)
{
	if (!__atomic_load_n(&range->on_device, __ATOMIC_ACQUIRE) && context &&
	    machine_charge(context->gpu, range->charged)) {
		bool expected = false;

		if (!__atomic_compare_exchange_n(&range->on_device, &expected, true, false, __ATOMIC_ACQ_REL,
						 __ATOMIC_ACQUIRE))
			machine_refund(context->gpu, range->charged); /* another executor was first */
	}
}

static bool one_accessible(struct range *range, CUcontext context, bool write)
{
	switch (range->kind) {
	case RANGE_MAPPED:
		return range->access[context->device] ==
			       (write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ) ||
		       range->access[context->device] == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	case RANGE_DEVICE:
	case RANGE_IPC:
		return range->device == context->device || (context->peers & (1u << range->device));
	case RANGE_POOL:
		return range->device == context->device;
	case RANGE_MANAGED:
		fault_in(range, context);
		return true;
	default:
		return true;
	}
}

bool ranges_accessible(CUcontext context, uint64_t address, uint64_t size, bool write)
{
	uint64_t end = address + size;

	if (end < address)
		return false;
	while (address < end) {
		struct range *range = ranges_find(&memory_ranges, address);

		if (!range || !one_accessible(range, context, write))
			return false;
		address = range->start + range->size;
	}
	return true;
}
