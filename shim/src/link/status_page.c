#define _GNU_SOURCE
#include "link/status_page.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "link/requests.h"
#include "gpu/backed.h"
#include "link/drop_caches.h"
#include "base/monotonic_futex.h"
#include "gpu/contexts.h"
#include "gpu/device_writes.h"
#include "gate/gate.h"
#include "host/retained_memory.h"
#include "host/lent_memory.h"
#include "gpu/managed_memory.h"
#include "host/slabs.h"
#include "gpu/unmovable_bytes.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1u
#define MFD_ALLOW_SEALING 2u
#endif

static struct affinode_page private_page;
static struct affinode_page *page = &private_page;
static int page_fd = -1;
static pthread_mutex_t page_lock = PTHREAD_MUTEX_INITIALIZER;

static void write_begin(void)
{
	pthread_mutex_lock(&page_lock);
	__atomic_store_n(&page->sequence, page->sequence + 1, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
}

static void write_end(void)
{
	__atomic_store_n(&page->sequence, page->sequence + 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&page_lock);
}

static int seal(int fd)
{
	int seals = F_SEAL_SHRINK | F_SEAL_GROW;

	/* Our own mapping stays writable; no one else can make one. Linux 5.1; older kernels do without.  */
	fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
	return fcntl(fd, F_ADD_SEALS, seals | F_SEAL_SEAL) == 0 ? 0 : -errno;
}

int page_create(void)
{
	void *mapped;
	int error, fd = (int)syscall(SYS_memfd_create, "affinode-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -errno;
	mapped = MAP_FAILED;
	if (ftruncate(fd, AFFINODE_PAGE_SIZE) == 0)
		mapped = mmap(NULL, AFFINODE_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	error = mapped == MAP_FAILED ? -errno : seal(fd);
	if (error) {
		if (mapped != MAP_FAILED)
			munmap(mapped, AFFINODE_PAGE_SIZE);
		close(fd);
		return error;
	}
	madvise(mapped, AFFINODE_PAGE_SIZE, MADV_DONTFORK);
	pthread_mutex_lock(&page_lock);
	memcpy(mapped, &private_page, sizeof(private_page));
	page = mapped;
	page->magic = AFFINODE_PAGE_MAGIC;
	page->version = AFFINODE_PROTOCOL_VERSION;
	page->size_of_gpu = sizeof(struct affinode_page_gpu);
	page->pid = (int32_t)getpid();
	page->state_since_ns = page->last_activity_ns = page->heartbeat_ns = clock_ns();
	page_fd = fd;
	pthread_mutex_unlock(&page_lock);
	return 0;
}

int page_open_read_only(void)
{
	char path[64];
	int fd;

	if (page_fd < 0)
		return -ENOENT;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", page_fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	/* Without /proc: F_SEAL_FUTURE_WRITE still keeps the receiver from mapping it writable.  */
	return fd >= 0 ? fd : fcntl(page_fd, F_DUPFD_CLOEXEC, 0);
}

void page_set_state(enum affinode_state state)
{
	write_begin();
	page->state = state;
	page->state_since_ns = clock_ns();
	write_end();
	page_sample();
}

void page_set_flags(uint32_t set, uint32_t clear)
{
	write_begin();
	page->flags = (page->flags & ~clear) | set;
	write_end();
}

void page_set_epoch(uint32_t epoch)
{
	write_begin();
	page->epoch = epoch;
	write_end();
}

void page_set_context_bytes(uint64_t bytes)
{
	write_begin();
	page->context_bytes = bytes;
	write_end();
}

void page_set_depth(enum affinode_depth depth)
{
	write_begin();
	page->depth = depth;
	write_end();
}

void page_count_mended(uint64_t chunks)
{
	write_begin();
	page->mended_chunks += chunks;
	write_end();
}

void page_note_move(bool park, uint64_t bytes, uint64_t duration_ns, uint64_t copied, uint64_t zeros)
{
	write_begin();
	if (park) {
		page->parks++;
		page->last_park_bytes = bytes;
		page->last_park_ns = duration_ns;
		page->last_park_copied_bytes = copied;
		page->last_park_zero_bytes = zeros;
	} else {
		page->resumes++;
		page->last_activity_ns = clock_ns(); /* somebody came for it, and is about to use it */
		page->last_resume_bytes = bytes;
		page->last_resume_ns = duration_ns;
	}
	write_end();
}

/* Launches, copies, allocations and modules are activity; books, polls and frees are not. A synchronise is while it waits
 * for work: a progress bar or a poller that finds none is as idle as if it had not asked.  */
static bool count_calls(uint64_t now)
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
	uint64_t all = tally_bytes(gpu, AFFINODE_FIXED_MANAGED), out = managed_bytes_out(gpu);

	return all > out ? all - out : 0;
}

static void count_bytes(void)
{
	static struct block_bytes bytes[AFFINODE_MAX_GPUS];
	static uint64_t shared[AFFINODE_MAX_GPUS], mapped[AFFINODE_MAX_GPUS], generation;
	const uint8_t *uuids[AFFINODE_MAX_GPUS];
	int gpus = device_count_known() < (int)AFFINODE_MAX_GPUS ? device_count_known() : (int)AFFINODE_MAX_GPUS;
	bool off_gpu = page->depth == AFFINODE_DEPTH_CONTEXT; /* then nothing stays */

	blocks_sum(bytes, shared, mapped, &generation);
	devices_uuids(uuids, gpus);
	page->gpu_count = (uint32_t)gpus;
	for (int i = 0; i < gpus; i++) {
		memcpy(page->gpus[i].uuid, uuids[i], sizeof(page->gpus[i].uuid));
		page->gpus[i].resident_bytes = bytes[i].resident;
		page->gpus[i].parked_bytes = bytes[i].parked;
		for (int reason = 0; reason < AFFINODE_FIXED_REASONS; reason++)
			page->gpus[i].fixed_bytes[reason] = off_gpu ? 0 : tally_bytes(i, reason);
		if (off_gpu)
			continue;
		page->gpus[i].fixed_bytes[AFFINODE_FIXED_MANAGED] = managed_left(i);
		page->gpus[i].fixed_bytes[AFFINODE_FIXED_SHARED] += shared[i];
		page->gpus[i].fixed_bytes[AFFINODE_FIXED_MAPPED] += mapped[i];
		if (device_writes_reason(false)) {
			page->gpus[i].fixed_bytes[AFFINODE_FIXED_DEVICE] = page->gpus[i].resident_bytes;
			page->gpus[i].resident_bytes = 0;
		}
	}
}

/* While the contents are on the GPU, whatever the host holds of them is only kept.  */
static void count_host_memory(void)
{
	bool resident = page->state == AFFINODE_STATE_RESIDENT || page->state == AFFINODE_STATE_PARKING;
	uint64_t kept = kept_bytes(), slots = slots_bytes();

	page->copy_bytes = resident ? 0 : slots;
	page->kept_bytes = resident ? kept : kept > slots ? kept - slots : 0;
	page->lot_bytes = lots_bytes();
}

void page_sample(void)
{
	unsigned inside = gate_calls_inside();
	bool dropping = caches_are_dropping(); /* not the person's doing: the process stays as idle as it was */
	uint64_t now = clock_ns();

	write_begin();
	page->calls_in_flight = inside;
	page->want = gate_calls_waiting();
	page->captures = captures_open();
	page->heartbeat_ns = now;
	page->room_bytes = asks_room_bytes();
	if (now < atomic_load(&gate.cancel_until_ns))
		page->flags |= AFFINODE_PAGE_CANCELLING;
	else
		page->flags &= ~(uint32_t)AFFINODE_PAGE_CANCELLING;
	if (count_calls(now) && !dropping)
		page->last_activity_ns = now;
	count_bytes();
	count_host_memory();
	write_end();
}

uint64_t page_last_activity_ns(void)
{
	return page->last_activity_ns;
}

size_t page_copy(void *buffer, size_t size)
{
	if (size > sizeof(*page))
		size = sizeof(*page);
	pthread_mutex_lock(&page_lock);
	memcpy(buffer, page, size);
	pthread_mutex_unlock(&page_lock);
	return size;
}

void page_reset_in_child(void)
{
	pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

	memcpy(&page_lock, &fresh, sizeof(fresh));
	if (page_fd >= 0)
		close(page_fd);
	page_fd = -1;
	memset(&private_page, 0, sizeof(private_page));
	page = &private_page; /* the parent's is not in our address space: MADV_DONTFORK */
}
