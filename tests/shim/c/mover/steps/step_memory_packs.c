/* A process is killed at any call that changes a file while it shares what it has parked, or that call fails: what others have is right and
 * theirs, whatever it left behind, and what it has itself, if it lives.  */
#include "sharers.h"

#include <errno.h>
#include <stdarg.h>
#include <sys/syscall.h>

#define STRIDE 3

static struct sharer other, maker; /* these stay parked meanwhile */

/* For the shim: die before the call, or return whether it fails.  */
static bool fails(void)
{
	maybe_die();
	if (atomic_load(&calls_to_fail) <= 0 || atomic_fetch_sub(&calls_to_fail, 1) != 1)
		return false;
	errno = ENOSPC;
	return true;
}

ssize_t pwrite(int fd, const void *from, size_t bytes, off_t at)
{
	return fails() ? -1 : syscall(SYS_pwrite64, fd, from, bytes, at);
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags)
{
	return fails() ? -1 : (int)syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
}

int mkdirat(int folder, const char *name, mode_t mode)
{
	return fails() ? -1 : (int)syscall(SYS_mkdirat, folder, name, mode);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to)
{
	return fails() ? -1 : (int)syscall(SYS_renameat, from_folder, from, to_folder, to);
}

int ftruncate(int fd, off_t bytes)
{
	return fails() ? -1 : (int)syscall(SYS_ftruncate, fd, bytes);
}

int flock(int fd, int how)
{
	return fails() ? -1 : (int)syscall(SYS_flock, fd, how);
}

/* Have it share; false: it died on the way.  */
static bool survives(struct sharer *sharer, char how, unsigned nth)
{
	uint32_t epoch;

	turn_to(sharer);
	controller_park();
	CHECK_EQUAL(tell(&sharer->sleeper, how, nth, 0), 'y');
	epoch = controller_share(shared, NUMBER);
	while (!controller_replied(epoch) && controller_pump()) /* its end closes the link */
		test_pause();
	return controller_replied(epoch);
}

/* Those beside it are right, and share what they have, and nothing is left of others.  */
static void others_are_right(bool with_maker)
{
	if (with_maker) {
		comes_back(&maker);
		share(&maker);
	}
	comes_back(&other);
	share(&other);
	CHECK_EQUAL(folders(), with_maker ? 2 : 1);
	CHECK(packs_in_memory().bytes <= WEIGHTS * CHUNK);
}

static bool has_maker;

/* False: there is no such call.  */
static bool step(char how, unsigned nth)
{
	static struct sharer sharer;
	bool survived, was_reached;

	test_at("sharing, '%c' at call %u", how, nth);
	sharer_start(&sharer, "tried");
	survived = survives(&sharer, how, nth);
	if (survived) {
		was_reached = tell(&sharer.sleeper, 'r', 0, 0) == 'y';
		CHECK_EQUAL(tell(&sharer.sleeper, how, 0, 0), 'y'); /* from here on all goes well */
		comes_back(&sharer);
		share(&sharer);
		comes_back(&sharer);
		sharer_kill(&sharer);
	} else {
		was_reached = true;
		CHECK_EQUAL(child_wait(sharer.sleeper.pid), 128 + SIGKILL);
		close(sharer.sleeper.talk);
		forget_link();
	}
	others_are_right(has_maker);
	return was_reached;
}

static void at_every_call(char how, unsigned by, const char *name)
{
	unsigned nth = 1 + (unsigned)(test_seed % by);

	while (step(how, nth))
		nth += by;
	printf("%s: '%c' at calls up to %u\n", name, how, nth - 1);
	CHECK(nth > 5);
}

int main(int argc, char **argv)
{
	const char *stride = getenv("TEST_STRIDE");
	unsigned by = stride && atoi(stride) > 0 ? (unsigned)atoi(stride) : STRIDE;

	test_begin(argc, argv, 190);
	if (test_role)
		sleeper_main();
	shared_begin();
	sharer_start(&other, "other");
	share(&other);
	at_every_call('k', by, "to packs of its own");
	at_every_call('f', by, "to packs of its own");
	sharer_start(&maker, "maker");
	has_maker = true;
	share(&maker);
	share(&other);
	at_every_call('k', by, "to packs of others");
	at_every_call('f', by, "to packs of others");
	sharer_kill(&maker);
	sharer_kill(&other);
	return 0;
}
