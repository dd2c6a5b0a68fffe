/* The shared file of the simulated machine, and the accounting in it.  */
#include "machine/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/text_file.h"
#include "machine/settings.h"

#define MACHINE_MAGIC 0x31304d4953464641ull /* "AFFSIM01" */

static pthread_mutex_t attach_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_machine *mapped;
static struct sim_process *self;
/* The machine's file, in which each process locks the byte of its record's number: that it lives is seen so from
 * other pid namespaces, too. -1: not open.  */
static int locks = -1;

uint64_t monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t process_start_time(int32_t pid)
{
	char path[32], text[1024], *after;
	unsigned long long start = 0;
	long threads = 0;
	char state = 0;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	if (text_read(path, text, sizeof(text)) <= 0)
		return 0;
	after = strrchr(text, ')'); /* the command's name may hold anything */
	if (!after || sscanf(after + 1,
			     " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %llu",
			     &state, &threads, &start) != 3)
		return 0;
	/* A zombie has given its GPU back; a zombie leader whose threads live on has not.  */
	if ((state == 'Z' || state == 'X') && threads <= 1)
		return 0;
	return start;
}

static uint32_t pid_namespace(void)
{
	struct stat status;

	/* Not stat(): glibc 2.33 re-versioned it.  */
	return syscall(SYS_newfstatat, AT_FDCWD, "/proc/self/ns/pid", &status, 0) == 0 ? (uint32_t)status.st_ino : 0;
}

static void open_locks(void)
{
	char folder[448], path[512];

	if (locks < 0 && settings_folder(folder, sizeof(folder)) == 0 &&
	    snprintf(path, sizeof(path), "%s/machine", folder) < (int)sizeof(path))
		locks = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
}

/* The system call itself: glibc 2.28 re-versioned fcntl().  */
static bool lock_record(const struct sim_process *process, int command, struct flock *lock)
{
	*lock = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = process - mapped->processes, .l_len = 1};
	open_locks();
	return locks >= 0 && syscall(SYS_fcntl, locks, command, lock) == 0;
}

static bool lives(const struct sim_process *process)
{
	struct flock lock;

	/* Else it may live all the same: with other clocks, as in a time namespace, Linux tells another time of its start.  */
	if (process->namespace == pid_namespace() && process_start_time(process->pid) == process->start_time)
		return true;
	return !lock_record(process, F_OFD_GETLK, &lock) || lock.l_type != F_UNLCK;
}

static void make_uuid(uint8_t uuid[16], const char *folder, unsigned gpu)
{
	uint32_t hash = 2166136261u;

	for (const char *c = folder; *c; c++)
		hash = (hash ^ (uint8_t)*c) * 16777619u;
	memcpy(uuid, "SIMULATED", 9);
	uuid[9] = 0;
	memcpy(uuid + 10, &hash, sizeof(hash));
	uuid[14] = (uint8_t)settings()->serial;
	uuid[15] = (uint8_t)gpu;
}

static void configure(struct sim_machine *made)
{
	const struct sim_settings *wanted = settings();

	made->gpu_count = wanted->gpus;
	made->context_bytes = wanted->context_bytes;
	for (unsigned gpu = 0; gpu < SIM_MAX_GPUS; gpu++) {
		made->gpus[gpu].total_bytes = wanted->memory_bytes;
		made->gpus[gpu].foreign_bytes = 0;
	}
}

static void initialise(struct sim_machine *made, const char *folder)
{
	pthread_mutexattr_t attributes;

	memset(made, 0, sizeof(*made));
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&made->lock, &attributes);
	pthread_mutexattr_destroy(&attributes);
	configure(made);
	for (unsigned gpu = 0; gpu < SIM_MAX_GPUS; gpu++)
		make_uuid(made->gpus[gpu].uuid, folder, gpu);
	made->size = sizeof(*made);
	__atomic_store_n(&made->magic, MACHINE_MAGIC, __ATOMIC_RELEASE);
}

/* A machine that no process uses takes the settings of the next process: tests change its size between runs.  */
static void reconfigure_if_idle(struct sim_machine *made)
{
	machine_lock();
	machine_reap();
	for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++)
		if (made->processes[i].pid)
			goto out;
	configure(made);
out:
	machine_unlock();
}

/* The file is made under flock, so that two first users do not both make it and a crash half-way is seen.  */
static int open_machine(const char *folder)
{
	char path[512];
	int fd, error = 0;

	if (snprintf(path, sizeof(path), "%s/machine", folder) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return -errno;
	while (flock(fd, LOCK_EX) < 0)
		if (errno != EINTR) {
			error = -errno;
			goto out;
		}
	if (lseek(fd, 0, SEEK_END) < (off_t)sizeof(*mapped) && ftruncate(fd, sizeof(*mapped)) < 0) {
		error = -errno;
		goto out;
	}
	mapped = mmap(NULL, sizeof(*mapped), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (mapped == MAP_FAILED) {
		error = -errno;
		mapped = NULL;
		goto out;
	}
	if (mapped->magic != MACHINE_MAGIC || mapped->size != sizeof(*mapped))
		initialise(mapped, folder);
	else
		reconfigure_if_idle(mapped);
out:
	flock(fd, LOCK_UN); /* the mapping holds the open file, so closing would not */
	close(fd);
	return error;
}

int machine_attach(void)
{
	char folder[448];
	int error = 0;

	pthread_mutex_lock(&attach_lock);
	if (!mapped) {
		error = settings_folder(folder, sizeof(folder));
		if (!error)
			error = open_machine(folder);
	}
	pthread_mutex_unlock(&attach_lock);
	return error;
}

struct sim_machine *machine(void)
{
	return mapped;
}

static void close_locks(void)
{
	if (locks >= 0)
		close(locks);
	locks = -1;
}

void machine_forget(void)
{
	self = NULL;
	close_locks(); /* the parent's, which goes on holding it */
}

void machine_lock(void)
{
	if (pthread_mutex_lock(&mapped->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&mapped->lock); /* every record is valid at every instant */
}

void machine_unlock(void)
{
	pthread_mutex_unlock(&mapped->lock);
}

void machine_reap(void)
{
	for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++) {
		struct sim_process *process = &mapped->processes[i];

		if (process->pid && !lives(process))
			process->pid = 0;
	}
}

struct sim_process *machine_find(int32_t pid)
{
	for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++) {
		struct sim_process *process = &mapped->processes[i];

		if (process->pid == pid && process->namespace == pid_namespace() && lives(process))
			return process;
	}
	return NULL;
}

/* A process that is woken from an image has the lock on its record again, so no other should have taken that meanwhile: each
 * process begins to look at a place of its own.  */
static struct sim_process *free_record(void)
{
	for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++) {
		struct sim_process *process = &mapped->processes[((unsigned)getpid() + i) % SIM_MAX_PROCESSES];

		if (!process->pid)
			return process;
	}
	return NULL;
}

struct sim_process *machine_rejoin(const struct sim_process *before)
{
	struct sim_process *record;
	struct flock lock;

	machine_reap();
	record = free_record();
	if (!record)
		return NULL;
	*record = *before;
	record->start_time = process_start_time(getpid());
	record->namespace = pid_namespace();
	lock_record(record, F_OFD_SETLK, &lock);
	record->pid = getpid();
	self = record;
	return record;
}

struct sim_process *machine_join(void)
{
	static const struct sim_process nothing;
	struct sim_process *record;

	if (self)
		return self;
	machine_lock();
	record = self ? self : machine_rejoin(&nothing);
	machine_unlock();
	return record;
}

struct sim_process *machine_self(void)
{
	return self;
}

void machine_leave(void)
{
	if (!self)
		return;
	machine_lock();
	if (self->pid == getpid()) {
		self->pid = 0;
		close_locks();
	}
	machine_unlock();
}

/* Bytes in use by all records, alive or not; the lock is held.  */
static uint64_t used_locked(unsigned gpu)
{
	uint64_t used = mapped->gpus[gpu].foreign_bytes;

	for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++)
		if (mapped->processes[i].pid)
			used += mapped->processes[i].used_bytes[gpu];
	return used;
}

static bool has_room(unsigned gpu, uint64_t bytes)
{
	uint64_t total = mapped->gpus[gpu].total_bytes, used = used_locked(gpu);

	return used <= total && bytes <= total - used;
}

bool machine_charge(unsigned gpu, uint64_t bytes)
{
	struct sim_process *record = machine_join();
	bool fits = false;

	if (!record)
		return false;
	machine_lock();
	fits = has_room(gpu, bytes);
	if (!fits) { /* looking for the dead costs a read of /proc each: only when it matters */
		machine_reap();
		fits = has_room(gpu, bytes);
	}
	if (fits)
		record->used_bytes[gpu] += bytes;
	machine_unlock();
	return fits;
}

void machine_refund(unsigned gpu, uint64_t bytes)
{
	if (!self)
		return;
	machine_lock();
	self->used_bytes[gpu] -= bytes < self->used_bytes[gpu] ? bytes : self->used_bytes[gpu];
	machine_unlock();
}

uint64_t machine_used(unsigned gpu)
{
	uint64_t used;

	machine_lock();
	machine_reap();
	used = used_locked(gpu);
	machine_unlock();
	return used;
}

uint64_t machine_free_locked(unsigned gpu)
{
	uint64_t used = used_locked(gpu), total = mapped->gpus[gpu].total_bytes;

	return used < total ? total - used : 0;
}

void machine_take_foreign(uint64_t bytes)
{
	machine_lock();
	machine_reap();
	for (unsigned gpu = 0; gpu < mapped->gpu_count; gpu++) {
		struct sim_gpu *of = &mapped->gpus[gpu];
		uint64_t room = machine_free_locked(gpu);

		of->foreign_bytes = bytes ? of->foreign_bytes + (bytes < room ? bytes : room) : 0;
	}
	machine_unlock();
}

void machine_uuid_text(unsigned gpu, char text[41])
{
	const uint8_t *uuid = mapped->gpus[gpu].uuid;
	char *at = text + sprintf(text, "GPU-");

	for (unsigned i = 0; i < 16; i++)
		at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}
