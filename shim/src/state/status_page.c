#define _GNU_SOURCE
#include "state/status_page.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/monotonic_futex.h"
#include "base/per_process.h"
#include "state/shim_state.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1u
#define MFD_ALLOW_SEALING 2u
#endif

static OF_PROCESS struct affinode_page private_page;
static struct affinode_page *page = &private_page;
static int page_fd = -1;
static void (*sampler)(void);
static OF_PROCESS pthread_mutex_t page_lock = PTHREAD_MUTEX_INITIALIZER;

struct affinode_page *page_begin(void)
{
	pthread_mutex_lock(&page_lock);
	__atomic_store_n(&page->sequence, page->sequence + 1, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	return page;
}

void page_end(void)
{
	__atomic_store_n(&page->sequence, page->sequence + 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&page_lock);
}

static int seal(int fd)
{
	int seals = F_SEAL_SHRINK | F_SEAL_GROW;

	/* Our own mapping stays writable; no other process can make one. Linux 5.1; older kernels do without.  */
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

/* The state is read here: of two threads that have just changed it, either may come last.  */
void page_take_state(void)
{
	page_begin();
	page->state = shim_state();
	page->state_since_ns = clock_ns();
	page_end();
	page_sample();
}

void page_set_flags(uint32_t set, uint32_t clear)
{
	page_begin();
	page->flags = (page->flags & ~clear) | set;
	page_end();
}

void page_set_epoch(uint32_t epoch)
{
	page_begin();
	page->epoch = epoch;
	page_end();
}

void page_set_context(uint64_t bytes, uint32_t gpu)
{
	page_begin();
	page->context_bytes = bytes;
	page->context_gpu = gpu;
	page_end();
}

void page_set_depth(enum affinode_depth depth)
{
	page_begin();
	page->depth = depth;
	page_end();
}

void page_count_mended(uint64_t chunks)
{
	page_begin();
	page->mended_chunks += chunks;
	page_end();
}

void page_note_move(bool park, uint64_t bytes, uint64_t duration_ns, uint64_t copied, uint64_t zeros)
{
	page_begin();
	if (park) {
		page->parks++;
		page->last_park_bytes = bytes;
		page->last_park_ns = duration_ns;
		page->last_park_copied_bytes = copied;
		page->last_park_zero_bytes = zeros;
	} else {
		page->resumes++;
		page->last_activity_ns = clock_ns(); /* a call wants it, and is about to use it */
		page->last_resume_bytes = bytes;
		page->last_resume_ns = duration_ns;
		page->last_resume_disk_bytes = copied;
	}
	page_end();
}

void page_set_sampler(void (*now)(void))
{
	sampler = now;
}

void page_sample(void)
{
	if (sampler)
		sampler();
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

void page_begin_again(void)
{
	if (page_fd >= 0)
		close(page_fd);
	page_fd = -1;
	page = &private_page; /* the parent's is not in our address space: MADV_DONTFORK */
}
