#include "link/drop_caches.h"

#include <errno.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/monotonic_futex.h"
#include "base/per_process.h"
#include "state/controller.h"
#include "state/shim_state.h"
#include "state/status_page.h"

/* A drop that began and never ended would hide the process's use of the GPU: after this it is not believed any more.  */
#define DROPPING_LASTS_NS (5 * S_NS)

#define EXPORT __attribute__((visibility("default")))

static OF_PROCESS pthread_mutex_t caches_lock = PTHREAD_MUTEX_INITIALIZER;
static OF_PROCESS struct {
	int fd; /* in the child of a fork left to the language that has it in its event loop */
	bool is_served, is_wished, is_begun, is_answered;
	uint32_t epoch;
	uint64_t deadline_ns;
	uint64_t begun_ns;
	int status;
} caches;

EXPORT int affinode_caches_fd(void)
{
	int fd;

	pthread_mutex_lock(&caches_lock);
	if (!caches.is_served)
		caches.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	fd = caches.fd < 0 ? -errno : caches.fd;
	caches.is_served = fd >= 0;
	pthread_mutex_unlock(&caches_lock);
	if (fd >= 0)
		page_set_flags(AFFINODE_PAGE_DROPS_CACHES, 0);
	return fd;
}

bool caches_ask(const struct affinode_command *command)
{
	uint64_t one = 1;
	bool served;

	pthread_mutex_lock(&caches_lock);
	served = caches.is_served && !caches.is_begun;
	if (served) {
		caches.is_wished = true;
		caches.is_answered = false;
		caches.epoch = command->header.epoch;
		caches.deadline_ns = command->deadline_ns;
		served = write(caches.fd, &one, sizeof(one)) == (ssize_t)sizeof(one);
	}
	pthread_mutex_unlock(&caches_lock);
	return served;
}

static void answer(int status)
{
	caches.is_answered = true;
	caches.status = status;
}

EXPORT int affinode_caches_begin(void)
{
	uint64_t wishes;
	bool begun;

	page_sample(); /* what the user's calls were so far is theirs */
	pthread_mutex_lock(&caches_lock);
	if (caches.is_served) {
		ssize_t n = read(caches.fd, &wishes, sizeof(wishes));
		(void)n;
	}
	begun = caches.is_wished; /* never while one is begun: caches_ask */
	caches.is_wished = false;
	if (begun && caches.deadline_ns && clock_ns() > caches.deadline_ns) {
		answer(AFFINODE_STALE);
		begun = false;
	} else if (begun && shim_state() != AFFINODE_STATE_RESIDENT) {
		answer(AFFINODE_BUSY); /* dropping would make it come back, or disturb its move */
		begun = false;
	}
	if (begun) {
		caches.is_begun = true;
		caches.begun_ns = clock_ns();
	}
	pthread_mutex_unlock(&caches_lock);
	link_wake();
	return begun;
}

EXPORT void affinode_caches_end(int status)
{
	page_sample(); /* the calls that dropped are counted while they are not yet taken for use */
	pthread_mutex_lock(&caches_lock);
	if (caches.is_begun)
		answer(status >= AFFINODE_OK && status <= AFFINODE_REFUSED ? status : AFFINODE_FAILED);
	caches.is_begun = false;
	pthread_mutex_unlock(&caches_lock);
	link_wake();
}

bool caches_take_answer(uint32_t *epoch, int *status)
{
	bool taken;

	pthread_mutex_lock(&caches_lock);
	taken = caches.is_answered && caches.epoch;
	if (taken) {
		*epoch = caches.epoch;
		*status = caches.status;
		caches.is_answered = false;
		caches.epoch = 0;
	}
	pthread_mutex_unlock(&caches_lock);
	return taken;
}

void caches_forget(void)
{
	pthread_mutex_lock(&caches_lock);
	caches.is_wished = caches.is_answered = false;
	caches.epoch = 0;
	pthread_mutex_unlock(&caches_lock);
}

bool caches_are_dropping(void)
{
	bool dropping;

	pthread_mutex_lock(&caches_lock);
	dropping = caches.is_begun && clock_ns() - caches.begun_ns < DROPPING_LASTS_NS;
	pthread_mutex_unlock(&caches_lock);
	return dropping;
}
