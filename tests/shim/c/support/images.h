/* Processes of one user that hibernate beside each other, each told by the parent, which is the controller of one at a time. Included once.  */
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include "depth.h"
#include "grown_up.h"

#define CHUNK ((uint64_t)MiB(2))
#define WEIGHTS 6 /* chunks that all have alike at first */
#define OWN 2     /* chunks of a process's own */
#define CHUNKS (WEIGHTS + OWN)
#define WEIGHTS_SEED 100

struct order {
	char what; /* 'c': look at all; 's': set chunk `at` to `seed`; 'k': die at the call `at` that changes a file; 'f': that call fails; 'r': it has come; 'q': end; 'e': by exit; 'F': have a child that lives on */
	uint32_t at, seed;
};

struct sleeper {
	char name[16];
	char image[96];
	pid_t pid;
	int talk;
};

static char store[] = "/var/tmp/aff-store-XXXXXX";
static pid_t store_maker;

/* ---- In the child  */

static _Atomic int calls_to_live = -1, calls_to_fail = -1;

/* Before a call that changes a file.  */
__attribute__((unused)) static void maybe_die(void)
{
	if (atomic_load(&calls_to_live) > 0 && atomic_fetch_sub(&calls_to_live, 1) == 1)
		kill(getpid(), SIGKILL);
}

static CUdeviceptr contents;
static uint32_t seeds[CHUNKS];

static void set_chunk(uint32_t at, uint32_t seed)
{
	seeds[at] = seed;
	fill_pattern(contents + at * CHUNK, CHUNK, seed);
}

static bool all_is_right(void)
{
	bool right = true;

	for (uint32_t at = 0; at < CHUNKS; at++)
		right = right && holds_pattern(contents + at * CHUNK, CHUNK, seeds[at], 0);
	return right;
}

static void say(int talk, char word)
{
	CHECK_EQUAL(write(talk, &word, 1), 1);
}

/* Be a child whose own contents are of its role's.  */
_Noreturn static void sleeper_main(void)
{
	struct order order;

	cuda_start_grown_up();
	CUDA(MemAlloc(&contents, CHUNKS * CHUNK));
	for (uint32_t at = 0; at < CHUNKS; at++)
		set_chunk(at, at < WEIGHTS ? WEIGHTS_SEED + at : 1000u * (unsigned char)test_role[0] + at);
	say(TALK_FD, 'r');
	while (read(TALK_FD, &order, sizeof(order)) == sizeof(order)) {
		if (order.what == 'q')
			_exit(0);
		if (order.what == 'e')
			exit(0);
		if (order.what == 'F' && fork() == 0) {
			alarm(20);
			close(TALK_FD);
			pause();
			_exit(0);
		}
		if (order.what == 'k')
			atomic_store(&calls_to_live, (int)order.at);
		if (order.what == 'f')
			atomic_store(&calls_to_fail, (int)order.at);
		if (order.what == 's')
			set_chunk(order.at, order.seed);
		say(TALK_FD, (order.what == 'c' && !all_is_right()) || (order.what == 'r' && (calls_to_live > 0 || calls_to_fail > 0)) ? 'n' : 'y');
	}
	_exit(0);
}

/* ---- In the parent  */

static void run(const char *format, const char *with)
{
	char command[256], *preloaded = getenv("LD_PRELOAD"), *kept = preloaded ? strdup(preloaded) : NULL;

	snprintf(command, sizeof(command), format, with);
	unsetenv("LD_PRELOAD");
	CHECK_EQUAL(system(command), 0);
	if (kept)
		setenv("LD_PRELOAD", kept, 1);
	free(kept);
}

static void remove_store(void)
{
	if (getpid() == store_maker)
		run("rm -rf %s", store);
}

static void store_begin(void)
{
	CHECK(mkdtemp(store) != NULL);
	store_maker = getpid();
	atexit(remove_store);
}

static char heard(const struct sleeper *sleeper)
{
	char word = 0;

	while (read(sleeper->talk, &word, 1) < 0)
		;
	return word; /* 0: it has ended */
}

static char tell(const struct sleeper *sleeper, char what, uint32_t at, uint32_t seed)
{
	struct order order = {.what = what, .at = at, .seed = seed};

	CHECK_EQUAL(write(sleeper->talk, &order, sizeof(order)), sizeof(order));
	return heard(sleeper);
}

/* A child that has all on the GPU, and is connected.  */
static struct sleeper sleeper_start(const char *name)
{
	struct sleeper sleeper;

	snprintf(sleeper.name, sizeof(sleeper.name), "%s", name);
	snprintf(sleeper.image, sizeof(sleeper.image), "%s/%s", store, name);
	sleeper.pid = child_start_talking(name, &sleeper.talk);
	controller_accept();
	CHECK_EQUAL(heard(&sleeper), 'r');
	return sleeper;
}

__attribute__((unused)) static void sleeper_end(struct sleeper *sleeper)
{
	struct order order = {.what = 'q'};

	CHECK_EQUAL(write(sleeper->talk, &order, sizeof(order)), sizeof(order));
	CHECK_EQUAL(child_wait(sleeper->pid), 0);
	close(sleeper->talk);
}

/* Have a file of that name be in its image, or not.  */
static void file_in_image(const struct sleeper *sleeper, const char *name, bool is_there)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", sleeper->image, name);
	if (is_there)
		close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	else
		unlink(path);
}

static uint32_t begin_image(const struct sleeper *sleeper)
{
	mkdir(sleeper->image, 0700);
	file_in_image(sleeper, "away", true);
	if (page_read().state != AFFINODE_STATE_PARKED)
		controller_park();
	return controller_into_image(sleeper->image);
}

/* Park it, and have all in its image; the bytes that were written for it.  */
__attribute__((unused)) static uint64_t hibernate(const struct sleeper *sleeper)
{
	uint64_t before = page_read().disk_written_bytes;
	struct affinode_reply reply = controller_reply(begin_image(sleeper));

	if (reply.status != AFFINODE_OK)
		test_fail(__FILE__, __LINE__, reply.text, reply.status);
	before = page_read().disk_written_bytes - before;
	controller_drop();
	return before;
}

/* Back to the controller, and back on the GPU: all is right.  */
__attribute__((unused)) static void wake(const struct sleeper *sleeper)
{
	file_in_image(sleeper, "away", false);
	controller_accept();
	CHECK_RESUMES();
	CHECK_EQUAL(tell(sleeper, 'c', 0, 0), 'y');
}

/* Of the packs in an image: what they take on the disk, and how many have so many names.  */
struct packs {
	uint64_t bytes;
	unsigned count, shared;
};

__attribute__((unused)) static struct packs packs_in(const char *image)
{
	DIR *folder = opendir(image);
	struct packs packs = {0, 0, 0};
	struct dirent *entry;
	struct stat status;

	while (folder && (entry = readdir(folder)) != NULL) {
		if (strncmp(entry->d_name, "gpu-", 4) != 0)
			continue;
		CHECK_EQUAL(fstatat(dirfd(folder), entry->d_name, &status, AT_SYMLINK_NOFOLLOW), 0);
		packs.count++;
		packs.shared += status.st_nlink > 1;
		packs.bytes += (uint64_t)status.st_blocks * 512 / CHUNK * CHUNK;
	}
	if (folder)
		closedir(folder);
	return packs;
}
