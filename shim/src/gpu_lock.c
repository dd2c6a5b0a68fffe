#include "gpu_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "clock.h"
#include "discovery.h"

#define MAX_LOCKS 64
/* How long "there is no lock file" is believed. checkpoint.c parks nothing until its file is older than that.  */
#define LOOK_EVERY_NS S_NS
#define SHARE_POLL_NS (2 * MS_NS)

struct lock {
	int exclusive; /* descriptors plus one; 0: not open */
	int shared;    /* of its own, so that the two kinds of holding do not convert each other */
	unsigned sharers;
	_Atomic uint64_t look_at_ns; /* no file before this; 0 once there is one */
};

static pthread_mutex_t lock_lock = PTHREAD_MUTEX_INITIALIZER;
static struct lock locks[MAX_LOCKS];
static bool all_held;

/* A folder that is root's has files made by the controller; flock needs no more than an open descriptor.  */
static int lock_file(const struct device *device, bool make)
{
	char folder[4096], path[4400];
	int fd, n;

	if (discovery_folder(folder, sizeof(folder)) != 0)
		return -1;
	n = snprintf(path, sizeof(path), "%s/gpu-", folder);
	for (int i = 0; i < 16 && n < (int)sizeof(path) - 8; i++)
		n += snprintf(path + n, sizeof(path) - (size_t)n, "%02x", device->uuid[i]);
	snprintf(path + n, sizeof(path) - (size_t)n, ".lock");
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0 && make && errno == ENOENT)
		fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	return fd;
}

static int locks_wanted(void)
{
	return device_count_known() < MAX_LOCKS ? device_count_known() : MAX_LOCKS;
}

static void unlock_all(void)
{
	for (int i = 0; i < MAX_LOCKS; i++) {
		if (!locks[i].exclusive)
			continue;
		/* Let go for every copy of the descriptor: a child that was forked meanwhile has one.  */
		flock(locks[i].exclusive - 1, LOCK_UN);
		close(locks[i].exclusive - 1);
		locks[i].exclusive = 0;
	}
	all_held = false;
}

static bool lock_one(int i)
{
	int fd = lock_file(device_at(i), true);

	if (fd < 0)
		return true;
	if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
		close(fd);
		return false;
	}
	locks[i].exclusive = fd + 1;
	return true;
}

bool gpu_lock_all(void)
{
	bool held = true;

	pthread_mutex_lock(&lock_lock);
	for (int i = 0; i < locks_wanted() && held && !all_held; i++)
		held = lock_one(i);
	if (held)
		all_held = true;
	else
		unlock_all();
	pthread_mutex_unlock(&lock_lock);
	return held;
}

void gpu_unlock_all(void)
{
	pthread_mutex_lock(&lock_lock);
	unlock_all();
	pthread_mutex_unlock(&lock_lock);
}

bool gpu_lock_is_held(const struct device *device)
{
	int i = device_index(device);
	bool held;

	pthread_mutex_lock(&lock_lock);
	held = i < MAX_LOCKS && locks[i].exclusive != 0;
	pthread_mutex_unlock(&lock_lock);
	return held;
}

bool gpu_locks_make(void)
{
	bool made = true;

	for (int i = 0; i < locks_wanted(); i++) {
		int fd = lock_file(device_at(i), true);

		made = made && fd >= 0;
		if (fd >= 0)
			close(fd);
	}
	return made;
}

/* The file, opened if it is there, with the lock held; false: it is not.  */
static bool open_shared(struct lock *lock, const struct device *device)
{
	int fd = lock->shared ? lock->shared - 1 : lock_file(device, false);

	lock->shared = fd + 1;
	atomic_store(&lock->look_at_ns, fd < 0 ? clock_ns() + LOOK_EVERY_NS : 0);
	return fd >= 0;
}

/* One try, with the lock held: 0, -ENOENT, -EBUSY.  */
static int share_once(struct lock *lock, const struct device *device)
{
	if (lock->exclusive)
		return -ENOENT; /* held by our own mover, with the gate closed */
	if (!open_shared(lock, device))
		return -ENOENT;
	if (!lock->sharers && flock(lock->shared - 1, LOCK_SH | LOCK_NB) != 0)
		return errno == EWOULDBLOCK || errno == EINTR ? -EBUSY : -ENOENT;
	lock->sharers++;
	return 0;
}

bool gpu_locks_are_used(void)
{
	uint64_t now = clock_ns();
	bool used = false;

	for (int i = 0; i < locks_wanted() && !used; i++) {
		if (now < atomic_load_explicit(&locks[i].look_at_ns, memory_order_relaxed))
			continue;
		pthread_mutex_lock(&lock_lock);
		used = open_shared(&locks[i], device_at(i));
		pthread_mutex_unlock(&lock_lock);
	}
	return used;
}

int gpu_share(const struct device *device, uint64_t ns)
{
	uint64_t begin = clock_ns();
	int i = device_index(device), result;

	if (i >= MAX_LOCKS || begin < atomic_load_explicit(&locks[i].look_at_ns, memory_order_relaxed))
		return -ENOENT;
	for (;;) {
		pthread_mutex_lock(&lock_lock);
		result = share_once(&locks[i], device);
		pthread_mutex_unlock(&lock_lock);
		if (result != -EBUSY || clock_ns() - begin > ns)
			return result;
		clock_sleep_ns(SHARE_POLL_NS);
	}
}

void gpu_unshare(const struct device *device)
{
	struct lock *lock = &locks[device_index(device)];

	pthread_mutex_lock(&lock_lock);
	if (--lock->sharers == 0)
		flock(lock->shared - 1, LOCK_UN);
	pthread_mutex_unlock(&lock_lock);
}

/* Closing a copy lets nothing of the parent's go.  */
void gpu_locks_reset_in_child(void)
{
	pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

	memcpy(&lock_lock, &fresh, sizeof(fresh));
	for (int i = 0; i < MAX_LOCKS; i++) {
		if (locks[i].exclusive)
			close(locks[i].exclusive - 1);
		if (locks[i].shared)
			close(locks[i].shared - 1);
	}
	memset(locks, 0, sizeof(locks));
	all_held = false;
}
