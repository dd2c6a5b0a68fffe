/* A process is killed at any call that changes a file while it hibernates, or while it gives space back: what others have on disk is right
 * and theirs, whatever it left behind.  */
#include "images.h"

#include <stdarg.h>
#include <sys/syscall.h>

#define STRIDE 3
#define COUNTS "woken.json" /* as long as its image counts, nothing in it is given back */

static struct sleeper other; /* it stays in its image meanwhile */

/* For the shim.  */
ssize_t pwrite(int fd, const void *from, size_t bytes, off_t at)
{
	maybe_die();
	return syscall(SYS_pwrite64, fd, from, bytes, at);
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags)
{
	maybe_die();
	return (int)syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
}

int unlink(const char *path)
{
	maybe_die();
	return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int ftruncate(int fd, off_t bytes)
{
	maybe_die();
	return (int)syscall(SYS_ftruncate, fd, bytes);
}

int fallocate(int fd, int mode, off_t at, off_t bytes)
{
	maybe_die();
	return (int)syscall(SYS_fallocate, fd, mode, at, bytes);
}

int flock(int fd, int how)
{
	maybe_die();
	return (int)syscall(SYS_flock, fd, how);
}

/* Have it hibernate; false: it died at that call, else it is back, and right.  */
static bool survives(struct sleeper *sleeper, unsigned nth)
{
	uint32_t epoch;
	bool survived;

	controller_park();
	CHECK_EQUAL(tell(sleeper, 'k', nth, 0), 'y');
	epoch = begin_image(sleeper);
	file_in_image(sleeper, COUNTS, false); /* it tidies while it hibernates: before, it could die unasked */
	while (!controller_replied(epoch) && controller_pump()) /* its end closes the link */
		test_pause();
	survived = controller_replied(epoch);
	controller_drop();
	if (survived) {
		CHECK_EQUAL(tell(sleeper, 'k', 0, 0), 'y');
		wake(sleeper);
		sleeper_end(sleeper);
		return true;
	}
	CHECK_EQUAL(child_wait(sleeper->pid), 128 + SIGKILL);
	close(sleeper->talk);
	return false;
}

/* Another takes what there is, is right, and goes.  */
static void others_are_right(unsigned nth)
{
	struct sleeper third = sleeper_start("third");
	uint64_t written = hibernate(&third);

	CHECK(written <= OWN * CHUNK);
	wake(&third);
	sleeper_end(&third);
	run("rm -rf %s", third.image);
	if (nth % 5 == 0) {
		wake(&other);
		CHECK(hibernate(&other) == 0);
	}
}

/* False: there is no such call.  */
static bool dies_on_its_way(unsigned nth)
{
	struct sleeper sleeper = sleeper_start("dying");
	bool died;

	test_at("hibernation, killed at call %u", nth);
	CHECK_EQUAL(tell(&sleeper, 's', 0, 5), 'y');
	died = !survives(&sleeper, nth);
	if (nth % 2) /* given up; or what is left stays there */
		run("rm -rf %s", sleeper.image);
	others_are_right(nth);
	return died;
}

/* The same while what has changed since is given back.  */
static bool dies_tidying(unsigned nth)
{
	struct sleeper sleeper = sleeper_start("tidying");
	bool died;

	test_at("tidying, killed at call %u", nth);
	hibernate(&sleeper);
	file_in_image(&sleeper, COUNTS, true); /* or the mover would tidy beside the answer to the park */
	wake(&sleeper);
	CHECK_EQUAL(tell(&sleeper, 's', 0, 6), 'y');
	CHECK_EQUAL(tell(&sleeper, 's', CHUNKS - 1, 7), 'y');
	died = !survives(&sleeper, nth);
	run("rm -rf %s", sleeper.image);
	others_are_right(nth);
	return died;
}

static void at_every_call(bool (*dies_at)(unsigned nth), unsigned by, const char *name)
{
	unsigned nth = 1 + (unsigned)(test_seed % by);

	while (dies_at(nth))
		nth += by;
	printf("%s: killed at calls up to %u\n", name, nth - 1);
	CHECK(nth > 5);
}

int main(int argc, char **argv)
{
	const char *stride = getenv("TEST_STRIDE");
	unsigned by = stride && atoi(stride) > 0 ? (unsigned)atoi(stride) : STRIDE;

	test_begin(argc, argv, 190);
	depth_ask();
	if (test_role)
		sleeper_main();
	store_begin();
	other = sleeper_start("other");
	hibernate(&other);
	at_every_call(dies_on_its_way, by, "hibernation");
	at_every_call(dies_tidying, by, "tidying");
	run("rm -rf %s/dying", store);
	CHECK_EQUAL(packs_in(other.image).shared, 0);
	wake(&other);
	sleeper_end(&other);
	return 0;
}
