#include "gpu/gpu_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/discovery.h"
#include "base/monotonic_futex.h"
#include "base/per_process.h"
#include "base/text_file.h"

#define MAX_LOCKS 64
/* How long "there is no lock file" is believed. checkpoint.c parks nothing until its file is older than that.  */
#define LOOK_EVERY_NS S_NS
#define SHARE_POLL_NS (2 * MS_NS)
/* Between looks at the lock's holder, and how long it is seen stopped before it is not waited for any more. Longer than
 * return_to_gpu.c believes what it has seen of the GPU: one that goes on again looks again.  */
#define HOLDER_POLL_NS (50 * MS_NS)
#define STOPPED_NS (2 * S_NS)

struct holder {
	pid_t pid;    /* 0: not to be seen, as from another pid name space */
	bool stopped; /* by a signal or a debugger; or gone, and survived by a copy of its descriptor */
};

/* The lock of a GPU, whatever number the GPU has here. A lock that was used once stays in the table.  */
struct lock {
	uint8_t uuid[16];
	int exclusive; /* descriptors plus one; 0: not open */
	int shared;    /* of its own, so that the two kinds of holding do not convert each other */
	unsigned sharers;
	_Atomic uint64_t look_at_ns; /* no file before this; 0 once there is one */
	struct holder passed_by;     /* the holder that was waited for in vain, as it was then */
	bool is_passed_by;
};

static OF_PROCESS pthread_mutex_t lock_lock = PTHREAD_MUTEX_INITIALIZER;
__thread bool gpu_lock_in_the_way __attribute__((tls_model("initial-exec")));
static OF_PROCESS struct lock locks[MAX_LOCKS];
static OF_PROCESS _Atomic int locks_known;
static OF_PROCESS bool all_held;

static struct lock *lock_find(const uint8_t gpu[16])
{
	for (int i = 0; i < atomic_load_explicit(&locks_known, memory_order_acquire); i++)
		if (memcmp(locks[i].uuid, gpu, sizeof(locks[i].uuid)) == 0)
			return &locks[i];
	return NULL;
}

/* Return the GPU's lock, added if it is new; NULL if there are too many. Called with lock_lock held.  */
static struct lock *lock_of(const uint8_t gpu[16])
{
	struct lock *lock = lock_find(gpu);
	int next = atomic_load(&locks_known);

	if (lock || next == MAX_LOCKS)
		return lock;
	lock = &locks[next];
	memcpy(lock->uuid, gpu, sizeof(lock->uuid));
	atomic_store_explicit(&locks_known, next + 1, memory_order_release);
	return lock;
}

/* Return whether the open file has no name any more: the folder may be cleaned up at any time, and others then lock another
 * file of that name. It is the system call itself, since fstat is a symbol of newer libraries.  */
static bool is_removed(int fd)
{
	struct stat file;

	return syscall(SYS_fstat, fd, &file) == 0 && file.st_nlink == 0;
}

/* Return whether the error says nothing about the file, as for want of a descriptor: it may well be there, and locked.  */
static bool is_temporary(int error)
{
	return error == EMFILE || error == ENFILE || error == ENOMEM || error == EINTR;
}

/* Open the lock file, or with `make` create it. Return its descriptor or a negative errno. In a folder that is root's the
 * controller makes the files; flock needs no more than an open descriptor.  */
static int lock_file(const uint8_t gpu[16], bool make)
{
	char folder[4096], path[4400];
	int fd, n;

	if (discovery_lock_folder(folder, sizeof(folder)) != 0)
		return -ENOENT;
	n = snprintf(path, sizeof(path), "%s/gpu-", folder);
	for (int i = 0; i < 16 && n < (int)sizeof(path) - 8; i++)
		n += snprintf(path + n, sizeof(path) - (size_t)n, "%02x", gpu[i]);
	snprintf(path + n, sizeof(path) - (size_t)n, ".lock");
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0 && make && errno == ENOENT)
		fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	/* A process with no descriptor left for a look that needs none must not wait for a file that is not there.  */
	if (fd < 0 && is_temporary(errno))
		return access(path, F_OK) == 0 ? -EMFILE : -ENOENT;
	return fd < 0 ? -errno : fd;
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

/* Lock a GPU exclusively. Return 0, or -EBUSY if another process has the lock. A lock file that cannot be had is no reason to
 * wait: then the result is 0.  */
static int lock_one(const uint8_t gpu[16], bool make)
{
	struct lock *lock = lock_of(gpu);
	int fd = lock && !lock->exclusive ? lock_file(gpu, make) : -1;

	if (fd < 0)
		return 0;
	if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
		bool is_held = errno == EWOULDBLOCK;

		close(fd); /* a file system without locks is as none */
		return is_held ? -EBUSY : 0;
	}
	if (is_removed(fd)) { /* since it was opened: once more */
		close(fd);
		return -EBUSY;
	}
	lock->exclusive = fd + 1;
	return 0;
}

int gpu_lock_all(void)
{
	int error = 0;

	pthread_mutex_lock(&lock_lock);
	for (int i = 0; i < device_count_known() && !error && !all_held; i++)
		error = lock_one(device_at(i)->uuid, true);
	if (error)
		unlock_all();
	else
		all_held = true;
	pthread_mutex_unlock(&lock_lock);
	return error;
}

int gpu_lock_other(const uint8_t gpu[16])
{
	int error;

	pthread_mutex_lock(&lock_lock);
	unlock_all();
	error = lock_one(gpu, false);
	pthread_mutex_unlock(&lock_lock);
	return error;
}

void gpu_unlock_all(void)
{
	pthread_mutex_lock(&lock_lock);
	unlock_all();
	pthread_mutex_unlock(&lock_lock);
}

bool gpu_lock_is_held(const uint8_t gpu[16])
{
	struct lock *lock;
	bool held;

	pthread_mutex_lock(&lock_lock);
	lock = lock_find(gpu);
	held = lock && lock->exclusive != 0 && !is_removed(lock->exclusive - 1);
	pthread_mutex_unlock(&lock_lock);
	return held;
}

int gpu_lock_make(const uint8_t gpu[16])
{
	int fd = lock_file(gpu, true);

	if (fd < 0)
		return fd;
	close(fd);
	return 0;
}

int gpu_locks_make(void)
{
	int error = 0;

	for (int i = 0; i < device_count_known(); i++) {
		int last = gpu_lock_make(device_at(i)->uuid);

		error = last ? last : error;
	}
	return error;
}

/* Open the lock's file for sharing, if it is there. Return 0, -ENOENT if there is none, or -EBUSY if that cannot be told now.
 * Called with lock_lock held.  */
static int open_shared(struct lock *lock)
{
	int fd, error;

	if (lock->shared && !lock->sharers && is_removed(lock->shared - 1)) {
		close(lock->shared - 1);
		lock->shared = 0;
	}
	fd = lock->shared ? lock->shared - 1 : lock_file(lock->uuid, false);
	error = fd >= 0 ? 0 : is_temporary(-fd) ? -EBUSY : -ENOENT;
	lock->shared = fd >= 0 ? fd + 1 : 0;
	atomic_store(&lock->look_at_ns, error == -ENOENT ? clock_ns() + LOOK_EVERY_NS : 0);
	return error;
}

/* Try once to share the lock. Return 0, -ENOENT or -EBUSY, as gpu_share. Called with lock_lock held.  */
static int share_once(struct lock *lock)
{
	int error;

	if (!lock)
		return -ENOENT;
	if (lock->exclusive)
		return -ENOENT; /* held by our own mover, with the gate closed */
	error = open_shared(lock);
	if (error)
		return error;
	if (!lock->sharers && flock(lock->shared - 1, LOCK_SH | LOCK_NB) != 0)
		return errno == EWOULDBLOCK || errno == EINTR ? -EBUSY : -ENOENT;
	lock->sharers++;
	return 0;
}

/* A wait for a lock that another process holds.  */
struct wait {
	uint64_t begin_ns, most_ns;
	struct holder holder; /* as it was seen last */
	uint64_t since_ns;    /* that it is so */
	uint64_t look_at_ns;  /* next */
};

static bool is_stopped(pid_t pid)
{
	char path[32], text[256], *state;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	if (text_read(path, text, sizeof(text)) < 0)
		return errno == ENOENT;
	state = strrchr(text, ')'); /* the command may have any character in it */
	return state && state[1] == ' ' && strchr("TtZX", state[2]) && state[2];
}

/* Return the process that holds an exclusive flock(2) on the file of that descriptor, as /proc shows it.  */
static struct holder holder_of(int fd)
{
	FILE *list = fopen("/proc/locks", "re");
	struct holder holder = {0};
	unsigned long inode;
	struct stat file;
	char line[160];
	int pid;

	if (!list || syscall(SYS_fstat, fd, &file) != 0)
		file.st_ino = 0;
	while (list && !holder.pid && fgets(line, sizeof(line), list))
		if (sscanf(line, "%*d: FLOCK ADVISORY WRITE %d %*x:%*x:%lu", &pid, &inode) == 2 && inode == file.st_ino)
			holder.pid = pid;
	if (list)
		fclose(list);
	holder.stopped = holder.pid > 0 && is_stopped(holder.pid);
	return holder;
}

static bool are_alike(struct holder one, struct holder other)
{
	return one.pid == other.pid && one.stopped == other.stopped;
}

/* Return whether a look found, not long ago, that there is no lock file.  */
static bool is_known_unused(const struct lock *lock, uint64_t now)
{
	return lock && now < atomic_load_explicit(&lock->look_at_ns, memory_order_relaxed);
}

bool gpu_locks_are_used(void)
{
	uint64_t now = clock_ns();
	bool used = false;

	for (int i = 0; i < device_count_known() && !used; i++) {
		const uint8_t *gpu = device_at(i)->uuid;
		struct lock *lock = lock_find(gpu);

		if (is_known_unused(lock, now))
			continue;
		pthread_mutex_lock(&lock_lock);
		lock = lock_of(gpu);
		used = lock && open_shared(lock) != -ENOENT;
		pthread_mutex_unlock(&lock_lock);
	}
	return used;
}

/* Return whether to wait no longer for a lock that is held. Called with lock_lock held.  */
static bool is_waited_for_in_vain(struct lock *lock, struct wait *wait, uint64_t now)
{
	struct holder holder;

	if (!lock->shared)
		return now - wait->begin_ns > wait->most_ns; /* no descriptor for a look */
	if (now < wait->look_at_ns)
		return false;
	holder = holder_of(lock->shared - 1);
	if (!are_alike(holder, wait->holder)) {
		wait->holder = holder;
		wait->since_ns = now;
	}
	wait->look_at_ns = now + HOLDER_POLL_NS;
	if (!(lock->is_passed_by && are_alike(holder, lock->passed_by)) &&
	    now - wait->since_ns <= (holder.stopped ? STOPPED_NS : wait->most_ns) && now - wait->begin_ns <= wait->most_ns)
		return false;
	lock->is_passed_by = true;
	lock->passed_by = holder;
	return true;
}

int gpu_share(const uint8_t gpu[16], uint64_t ns)
{
	uint64_t begin = clock_ns();
	struct wait wait = {.begin_ns = begin, .since_ns = begin, .most_ns = ns};

	if (is_known_unused(lock_find(gpu), begin))
		return -ENOENT;
	for (;;) {
		struct lock *lock;
		bool in_vain;
		int result;

		pthread_mutex_lock(&lock_lock);
		lock = lock_of(gpu);
		result = share_once(lock);
		in_vain = result == -EBUSY && is_waited_for_in_vain(lock, &wait, clock_ns());
		if (result == 0)
			lock->is_passed_by = false;
		pthread_mutex_unlock(&lock_lock);
		if (result != -EBUSY || in_vain)
			return result;
		clock_sleep_ns(SHARE_POLL_NS);
	}
}

void gpu_unshare(const uint8_t gpu[16])
{
	struct lock *lock;

	pthread_mutex_lock(&lock_lock);
	lock = lock_find(gpu);
	if (lock && lock->sharers && --lock->sharers == 0)
		flock(lock->shared - 1, LOCK_UN);
	pthread_mutex_unlock(&lock_lock);
}

/* Closing the child's copies releases no lock of the parent's.  */
void gpu_locks_close(void)
{
	pthread_mutex_lock(&lock_lock);
	gpu_locks_close_in_child();
	for (int i = 0; i < MAX_LOCKS; i++) {
		locks[i].exclusive = locks[i].shared = 0;
		locks[i].look_at_ns = 0;
	}
	pthread_mutex_unlock(&lock_lock);
}

void gpu_locks_close_in_child(void)
{
	for (int i = 0; i < MAX_LOCKS; i++) {
		if (locks[i].exclusive)
			close(locks[i].exclusive - 1);
		if (locks[i].shared)
			close(locks[i].shared - 1);
	}
}
