/* What images of one user have in common is on disk once: the second writes only what is its own, each comes back right whatever becomes of
 * the others, and nothing is believed to be equal that is not.  */
#include "images.h"

static struct sleeper first, second;

static void second_writes_its_own_alone(void)
{
	test_at("two images");
	first = sleeper_start("a");
	CHECK_EQUAL(hibernate(&first), CHUNKS * CHUNK);
	CHECK_EQUAL(packs_in(first.image).shared, 0);
	second = sleeper_start("b");
	CHECK_EQUAL(hibernate(&second), OWN * CHUNK);
	CHECK_EQUAL(packs_in(first.image).shared, 1);
	CHECK_EQUAL(packs_in(second.image).count, 2);
	CHECK_EQUAL(packs_in(second.image).bytes, (CHUNKS + OWN) * CHUNK);
	wake(&second);
	CHECK_EQUAL(page_read().last_resume_disk_bytes, CHUNKS * CHUNK);
}

/* What has not changed is not written either time, and what the first has changed is not changed for the second.  */
static void each_changes_by_itself(void)
{
	test_at("changed");
	CHECK_EQUAL(tell(&second, 's', 0, 1), 'y');
	CHECK_EQUAL(hibernate(&second), CHUNK);
	wake(&first);
	CHECK_EQUAL(tell(&first, 's', 1, 2), 'y');
	CHECK_EQUAL(tell(&first, 's', 2, 3), 'y');
	CHECK_EQUAL(hibernate(&first), 2 * CHUNK);
	wake(&second);
	CHECK_EQUAL(tell(&second, 's', 1, 2), 'y'); /* as the first has it now */
	CHECK_EQUAL(hibernate(&second), 0);
	wake(&first);
	CHECK_EQUAL(hibernate(&first), 0);
	wake(&second);
}

/* A hibernation that is given up removes the folder of a process that lives.  */
static void folder_goes(void)
{
	test_at("its folder is removed");
	CHECK_EQUAL(hibernate(&second), 0);
	run("rm -rf %s", second.image);
	controller_accept(); /* nothing says that it is to stay away */
	CHECK_EQUAL(hibernate(&second), 0);
	CHECK_EQUAL(packs_in(first.image).shared, packs_in(first.image).count);
	run("rm -rf %s", second.image);
	controller_accept();
	CHECK_RESUMES();
	CHECK_EQUAL(tell(&second, 'c', 0, 0), 'y');
}

/* What it has on disk is its own also while it has no name for it.  */
static void names_go(void)
{
	test_at("its names are removed");
	CHECK_EQUAL(hibernate(&second), 0);
	run("rm %s/gpu-*", second.image);
	for (unsigned round = 0; round < 2; round++) {
		wake(&first);
		for (uint32_t at = round; at < WEIGHTS - 1; at++) /* the rest keeps their pack */
			CHECK_EQUAL(tell(&first, 's', at, 20 + at + CHUNKS * round), 'y');
		CHECK_EQUAL(hibernate(&first), (WEIGHTS - 1 - round) * CHUNK);
	}
	wake(&second);
	sleeper_end(&second);
	run("rm -rf %s", second.image);
	wake(&first);
}

/* Space of what is not used any more is free again: a pack's that was never shared, and one's that nothing is used of.  */
static void space_comes_back(void)
{
	test_at("space");
	hibernate(&first);
	wake(&first);
	for (uint32_t at = 0; at < CHUNKS; at++)
		CHECK_EQUAL(tell(&first, 's', at, 50 + at), 'y');
	hibernate(&first);
	CHECK_EQUAL(packs_in(first.image).bytes, CHUNKS * CHUNK);
	wake(&first);
	CHECK_EQUAL(tell(&first, 's', 0, 77), 'y');
	CHECK_EQUAL(hibernate(&first), CHUNK);
	CHECK_EQUAL(packs_in(first.image).bytes, CHUNKS * CHUNK);
	CHECK_EQUAL(packs_in(first.image).count, 1);
	wake(&first);
}

/* What a woken process frees stays while its image may be woken again.  */
static void stays_while_the_image_counts(void)
{
	char path[128];
	uint64_t before;

	test_at("its image counts");
	hibernate(&first);
	before = packs_in(first.image).bytes;
	snprintf(path, sizeof(path), "%s/woken.json", first.image);
	close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	wake(&first);
	CHECK_EQUAL(tell(&first, 's', 0, 78), 'y');
	controller_park();
	CHECK_RESUMES();
	CHECK_EQUAL(packs_in(first.image).bytes, before);
	unlink(path);
	controller_park();
	CHECK_RESUMES();
	UNTIL(packs_in(first.image).bytes == before - CHUNK);
}

static void change_file(const char *image)
{
	static const unsigned char other[4096] = {1};
	DIR *folder = opendir(image);
	struct dirent *entry;

	CHECK(folder != NULL);
	while ((entry = readdir(folder)) != NULL)
		if (!strncmp(entry->d_name, "gpu-", 4)) {
			int fd = openat(dirfd(folder), entry->d_name, O_RDWR | O_CLOEXEC);

			for (unsigned at = 0; at < 16 * CHUNKS; at++)
				CHECK_EQUAL(pwrite(fd, other, sizeof(other), (off_t)(at * CHUNK + CHUNK / 2)), sizeof(other));
			CHECK_EQUAL(fsync(fd), 0);
			close(fd);
		}
	closedir(folder);
}

/* Each has its own where it cannot be seen that what the store has is equal, and is this user's alone.  */
static void nothing_is_believed(void)
{
	struct sleeper third;

	test_at("damaged");
	hibernate(&first);
	change_file(first.image); /* its hints say what it was */
	third = sleeper_start("c");
	for (uint32_t at = 0; at < CHUNKS; at++)
		CHECK_EQUAL(tell(&third, 's', at, at ? 50 + at : 78), 'y');
	CHECK_EQUAL(hibernate(&third), CHUNKS * CHUNK);
	CHECK_EQUAL(packs_in(third.image).shared, 0);
	wake(&third);
	sleeper_end(&third);
	run("rm -rf %s", third.image);
	kill(first.pid, SIGKILL);
	child_wait(first.pid);
	run("rm -rf %s/*", store);
}

static void only_a_private_store(void)
{
	struct sleeper one = sleeper_start("d"), other;

	test_at("a store that others may enter");
	hibernate(&one);
	CHECK_EQUAL(chmod(store, 0755), 0);
	other = sleeper_start("e");
	CHECK_EQUAL(hibernate(&other), CHUNKS * CHUNK);
	wake(&other);
	CHECK_EQUAL(chmod(store, 0700), 0);
	sleeper_end(&other);
	run("rm -rf %s", other.image);
	if (geteuid() == 0) {
		test_at("another user's file");
		run("chown 12345 %s/d/gpu-*", store);
		other = sleeper_start("f");
		CHECK_EQUAL(hibernate(&other), CHUNKS * CHUNK);
		wake(&other);
		sleeper_end(&other);
		run("chown 0 %s/d/gpu-*", store);
	}
	wake(&one);
	sleeper_end(&one);
}

int main(int argc, char **argv)
{
	test_begin(argc, argv, 100);
	depth_ask();
	if (test_role)
		sleeper_main();
	store_begin();
	second_writes_its_own_alone();
	each_changes_by_itself();
	folder_goes();
	names_go();
	space_comes_back();
	stays_while_the_image_counts();
	nothing_is_believed();
	only_a_private_store();
	return 0;
}
