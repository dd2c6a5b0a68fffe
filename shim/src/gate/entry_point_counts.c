#include "gate/entry_point_counts.h"

#include <stdatomic.h>
#include <string.h>

#include "base/monotonic_futex.h"
#include "base/per_process.h"
#include "gate/gate.h"

#define PLACES 1024u /* more than a program resolves; names without a place are not counted */
#define COUNT_LIMIT_NS (60 * S_NS)

/* Counts by name. A place belongs to a name for good, and is found by the address of the name's text: one name may have several
 * places.  */
static struct place {
	_Atomic(const char *) name;
	_Atomic uint64_t calls;
} places[PLACES] OF_PROCESS;

static uint64_t counted_since_ns OF_PROCESS, counted_until_ns OF_PROCESS; /* the link thread's */

static struct place *place_of(const char *name)
{
	size_t at = ((uintptr_t)name * 0x9e3779b97f4a7c15ull) >> 32;

	for (size_t i = 0; i < PLACES; i++) {
		struct place *place = &places[(at + i) % PLACES];
		const char *known = atomic_load_explicit(&place->name, memory_order_relaxed);

		if (!known && atomic_compare_exchange_strong(&place->name, &known, name))
			return place;
		if (known == name)
			return place;
	}
	return NULL;
}

void entry_point_called(const char *name)
{
	struct place *place = name ? place_of(name) : NULL;

	if (place)
		atomic_fetch_add_explicit(&place->calls, 1, memory_order_relaxed);
}

void entry_points_count_for(uint64_t duration_ns)
{
	uint64_t now = clock_ns();

	if (duration_ns > COUNT_LIMIT_NS)
		duration_ns = COUNT_LIMIT_NS;
	counted_until_ns = now + duration_ns;
	if (!duration_ns || counted_since_ns)
		return;
	for (size_t i = 0; i < PLACES; i++)
		atomic_store_explicit(&places[i].calls, 0, memory_order_relaxed);
	counted_since_ns = now;
	gate_set_counting(true);
}

static const char *shown(const char *name)
{
	return strncmp(name, "on_", 3) == 0 ? name + 3 : name;
}

/* Add an entry point to the page's list, which has the most called first.  */
static void take(struct affinode_page *page, const char *name, uint64_t calls)
{
	struct affinode_entry_point *points = page->entry_points;
	uint32_t at = 0;

	while (at < page->entry_point_count && strncmp(points[at].name, name, sizeof(points[at].name) - 1) != 0)
		at++;
	if (at < page->entry_point_count) {
		calls += points[at].calls;
	} else if (at < AFFINODE_ENTRY_POINTS) {
		page->entry_point_count++;
	} else if (points[--at].calls >= calls) {
		return;
	}
	for (; at > 0 && points[at - 1].calls < calls; at--)
		points[at] = points[at - 1];
	memset(&points[at], 0, sizeof(points[at]));
	strncpy(points[at].name, name, sizeof(points[at].name) - 1);
	points[at].calls = calls;
}

void entry_points_sample(struct affinode_page *page, uint64_t now)
{
	if (!counted_since_ns)
		return;
	if (now >= counted_until_ns) {
		gate_set_counting(false);
		counted_since_ns = 0;
	}
	page->counted_since_ns = counted_since_ns;
	page->entry_point_count = 0;
	memset(page->entry_points, 0, sizeof(page->entry_points));
	for (size_t i = 0; counted_since_ns && i < PLACES; i++) {
		const char *name = atomic_load_explicit(&places[i].name, memory_order_relaxed);
		uint64_t calls = atomic_load_explicit(&places[i].calls, memory_order_relaxed);

		if (name && calls)
			take(page, shown(name), calls);
	}
}
