/* Preloaded into every process under chaos: clocks that jump for all of them at once, as they do when a virtual machine goes
 * on after a pause (CLOCK_MONOTONIC, forward), or when a user sets the time (CLOCK_REALTIME, either way).
 *
 * The file CHAOS_CLOCK holds two signed numbers of 64 bits, nanoseconds to add to either clock. Waits until a moment are
 * waits until the same moment of the true clock.  */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define S_NS 1000000000
/* A moment later than that is one of CLOCK_REALTIME (2001), an earlier one is of CLOCK_MONOTONIC (31 years up).  */
#define REALTIME_FROM_S 1000000000

struct offsets {
	int64_t monotonic_ns, realtime_ns;
};

static const struct offsets none;
static const volatile struct offsets *offsets = &none;

__attribute__((constructor)) static void map_offsets(void)
{
	const char *path = getenv("CHAOS_CLOCK");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *mapped;

	if (fd < 0)
		return;
	mapped = mmap(NULL, sizeof(none), PROT_READ, MAP_SHARED, fd, 0);
	if (mapped != MAP_FAILED)
		offsets = mapped;
	close(fd);
}

static struct timespec moved(struct timespec t, int64_t by_ns)
{
	int64_t ns = t.tv_nsec + by_ns % S_NS;

	t.tv_sec += by_ns / S_NS + (ns < 0 ? -1 : ns >= S_NS);
	t.tv_nsec = ns < 0 ? ns + S_NS : ns >= S_NS ? ns - S_NS : ns;
	return t;
}

static int64_t offset_of(clockid_t clock)
{
	switch (clock) {
	case CLOCK_REALTIME:
	case CLOCK_REALTIME_COARSE:
		return offsets->realtime_ns;
	case CLOCK_MONOTONIC:
	case CLOCK_MONOTONIC_COARSE:
	case CLOCK_MONOTONIC_RAW:
	case CLOCK_BOOTTIME:
		return offsets->monotonic_ns;
	default:
		return 0;
	}
}

static struct timespec true_moment(const struct timespec *until)
{
	return moved(*until, until->tv_sec > REALTIME_FROM_S ? -offsets->realtime_ns : -offsets->monotonic_ns);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	if (syscall(SYS_clock_gettime, clock, now) != 0)
		return -1;
	*now = moved(*now, offset_of(clock));
	return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec t;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &t);
	*now = (struct timeval){t.tv_sec, t.tv_nsec / 1000};
	return 0;
}

time_t time(time_t *now)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	if (now)
		*now = t.tv_sec;
	return t.tv_sec;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left)
{
	struct timespec t = flags & TIMER_ABSTIME ? moved(*until, -offset_of(clock)) : *until;

	return syscall(SYS_clock_nanosleep, clock, flags, &t, left) == 0 ? 0 : errno;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
			   const struct timespec *restrict until)
{
	struct timespec t = true_moment(until);

	return REAL(pthread_cond_timedwait)(condition, mutex, &t);
}

int pthread_cond_clockwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, clockid_t clock,
			   const struct timespec *restrict until)
{
	struct timespec t = true_moment(until);

	return REAL(pthread_cond_clockwait)(condition, mutex, clock, &t);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until)
{
	struct timespec t = true_moment(until);

	return REAL(sem_timedwait)(semaphore, &t);
}

int sem_clockwait(sem_t *restrict semaphore, clockid_t clock, const struct timespec *restrict until)
{
	struct timespec t = true_moment(until);

	return REAL(sem_clockwait)(semaphore, clock, &t);
}
