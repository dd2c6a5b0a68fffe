#include "link/link.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/monotonic_futex.h"
#include "base/per_process.h"
#include "gate/entry_point_counts.h"
#include "gate/gate.h"
#include "gpu/contexts.h"
#include "host/bounce_ring.h"
#include "host/lent_memory.h"
#include "host/packs/memory_packs.h"
#include "host/packs/spill_file.h"
#include "host/slabs.h"
#include "link/drop_caches.h"
#include "link/requests.h"
#include "memory/blocks/block.h"
#include "memory/device_writes.h"
#include "memory/managed_memory.h"
#include "memory/unmovable_bytes.h"
#include "state/status_page.h"

/* Sum the calls by class, and return whether any since the last look is use of the GPU. Launches, copies, allocations and
 * modules are; bookkeeping, queries and frees are not. A synchronise is use while it waits for work: a progress bar or a poller
 * that finds none is as idle as if it had not asked.  */
static bool count_calls(struct affinode_page *page, uint64_t now)
{
	uint64_t calls[AFFINODE_CLASSES];
	bool active = gate_calls_at_work(now) > 0;

	gate_sum_calls(calls);
	for (int i = AFFINODE_CLASS_LAUNCH; i < AFFINODE_CLASSES; i++)
		active = active || (i != AFFINODE_CLASS_SYNC && calls[i] != page->calls[i]);
	memcpy(page->calls, calls, sizeof(calls));
	return active;
}

static uint64_t managed_left(int gpu)
{
	uint64_t all = unmovable_bytes(gpu, AFFINODE_UNMOVABLE_MANAGED), out = managed_bytes_out(gpu);

	return all > out ? all - out : 0;
}

/* Keep a moment of the page from being in the future: the clock of a process that was woken from an image may have gone back.  */
static void keep_in_past(uint64_t *moment, uint64_t now)
{
	if (*moment > now)
		*moment = now;
}

/* Figures that other parts keep under locks of their own. They are read before the page is changed, since such a lock may be
 * held for seconds, and a page that is half written meanwhile is of no use to its reader.  */
static struct {
	struct block_bytes bytes[AFFINODE_MAX_GPUS];
	uint64_t shared[AFFINODE_MAX_GPUS], mapped[AFFINODE_MAX_GPUS], generation;
	const uint8_t *uuids[AFFINODE_MAX_GPUS];
	uint64_t lots;
	struct memory_packs_use in_packs;
	int gpus;
	bool written_by_devices;
} seen;

/* Guards `seen`, and is taken before the page's own.  */
static OF_PROCESS pthread_mutex_t sampling = PTHREAD_MUTEX_INITIALIZER;

static void sample_memory(void)
{
	seen.gpus = device_count_known() < (int)AFFINODE_MAX_GPUS ? device_count_known() : (int)AFFINODE_MAX_GPUS;
	blocks_sum(seen.bytes, seen.shared, seen.mapped, &seen.generation);
	devices_uuids(seen.uuids, seen.gpus);
	seen.lots = lots_bytes();
	seen.in_packs = memory_packs_use();
	seen.written_by_devices = device_writes_reason(false) != NO_REASON;
}

static void count_bytes(struct affinode_page *page)
{
	bool off_gpu = page->depth == AFFINODE_DEPTH_CONTEXT; /* then nothing stays */

	page->gpu_count = (uint32_t)seen.gpus;
	for (int i = 0; i < seen.gpus; i++) {
		memcpy(page->gpus[i].uuid, seen.uuids[i], sizeof(page->gpus[i].uuid));
		page->gpus[i].resident_bytes = seen.bytes[i].resident;
		page->gpus[i].parked_bytes = seen.bytes[i].parked;
		for (int reason = 0; reason < AFFINODE_UNMOVABLE_REASONS; reason++)
			page->gpus[i].unmovable_bytes[reason] = off_gpu ? 0 : unmovable_bytes(i, reason);
		if (off_gpu)
			continue;
		page->gpus[i].unmovable_bytes[AFFINODE_UNMOVABLE_MANAGED] = managed_left(i);
		page->gpus[i].unmovable_bytes[AFFINODE_UNMOVABLE_SHARED] += seen.shared[i];
		page->gpus[i].unmovable_bytes[AFFINODE_UNMOVABLE_MAPPED] += seen.mapped[i];
		if (seen.written_by_devices) {
			page->gpus[i].unmovable_bytes[AFFINODE_UNMOVABLE_DEVICE] = page->gpus[i].resident_bytes;
			page->gpus[i].resident_bytes = 0;
		}
	}
}

/* Write the host memory in use. While the contents are on the GPU, whatever the host has of them is a retained copy.  */
static void count_host_memory(struct affinode_page *page)
{
	bool resident = page->state == AFFINODE_STATE_RESIDENT || page->state == AFFINODE_STATE_PARKING;
	uint64_t kept = slabs_bytes() + staging_bytes(), slots = slots_bytes();

	page->copy_bytes = resident ? 0 : slots + seen.in_packs.sole;
	page->retained_bytes = resident ? kept + seen.in_packs.bytes : kept > slots ? kept - slots : 0;
	page->shared_bytes = seen.in_packs.shared;
	page->shared_part_bytes = seen.in_packs.part;
	page->lot_bytes = seen.lots;
	page->disk_bytes = spill_bytes();
	page->disk_written_bytes = spill_written_bytes();
}

void page_take_sample(void)
{
	struct affinode_page *page;
	unsigned inside = gate_calls_inside();
	bool dropping = caches_are_dropping(); /* not the user's doing: the process stays as idle as it was */
	uint64_t now = clock_ns();

	pthread_mutex_lock(&sampling);
	sample_memory();
	page = page_begin();
	page->calls_in_flight = inside;
	page->want = gate_calls_waiting();
	page->captures = captures_open();
	page->heartbeat_ns = now;
	keep_in_past(&page->state_since_ns, now);
	keep_in_past(&page->last_activity_ns, now);
	if (now < atomic_load(&gate.cancel_until_ns))
		page->flags |= AFFINODE_PAGE_CANCELLING;
	else
		page->flags &= ~(uint32_t)AFFINODE_PAGE_CANCELLING;
	if (count_calls(page, now) && !dropping)
		page->last_activity_ns = now;
	entry_points_sample(page, now);
	count_bytes(page);
	count_host_memory(page);
	page_end();
	pthread_mutex_unlock(&sampling);
}
