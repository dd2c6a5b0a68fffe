/* What parked processes of one user have in common is in host memory once, whatever becomes of each of them, and of their folder.  */
#include "sharers.h"

static struct sharer first, second;

static void comes_once(void)
{
	test_at("two that share");
	sharer_start(&first, "a");
	CHECK_EQUAL(share(&first), 0); /* offers all that it has */
	CHECK_EQUAL(page_read().shared_bytes, 0);
	CHECK_EQUAL(page_read().copy_bytes, CHUNKS * CHUNK);
	sharer_start(&second, "b");
	CHECK_EQUAL(share(&second), WEIGHTS);
	PAGE_UNTIL(page.copy_bytes == CHUNKS * CHUNK); /* all would be free without it */
	CHECK_EQUAL(page_read().shared_bytes, 0);
	CHECK_EQUAL(share(&first), 0);
	PAGE_UNTIL(page.copy_bytes == OWN * CHUNK);
	CHECK_EQUAL(page_read().shared_bytes, WEIGHTS * CHUNK);
	CHECK_EQUAL(page_read().shared_part_bytes / CHUNK, WEIGHTS / 2);
	CHECK_EQUAL(packs_in_memory().bytes, WEIGHTS * CHUNK);
	CHECK_EQUAL(packs_in_memory().shared, 2);
	comes_back(&first);
	CHECK_EQUAL(page_read().last_resume_disk_bytes, 0);
	comes_back(&second);
}

/* What is retained stays shared, and what one changes is not changed for the other.  */
static void each_changes_by_itself(void)
{
	test_at("changed");
	turn_to(&first);
	controller_park();
	CHECK_EQUAL(page_read().last_park_copied_bytes, 0);
	CHECK_RESUMES();
	CHECK_EQUAL(tell(&first.sleeper, 's', 1, 5), 'y');
	CHECK_EQUAL(share(&first), 0);
	CHECK_EQUAL(page_read().last_park_copied_bytes, CHUNK);
	CHECK_EQUAL(packs_in_memory().bytes, WEIGHTS * CHUNK);
	CHECK_EQUAL(tell(&second.sleeper, 's', 1, 5), 'y');
	CHECK_EQUAL(share(&second), 1); /* to a pack that is its own */
	CHECK_EQUAL(share(&first), 0);
	PAGE_UNTIL(page.copy_bytes == OWN * CHUNK);
	comes_back(&first);
	comes_back(&second);
}

static void folder_goes(void)
{
	test_at("its folder is removed");
	share(&first);
	share(&second);
	run("rm -rf %s", users);
	comes_back(&first);
	CHECK_EQUAL(share(&first), 0);
	comes_back(&first);
	comes_back(&second);
	CHECK_EQUAL(tell(&first.sleeper, 's', 0, 6), 'y');
	CHECK_EQUAL(tell(&second.sleeper, 's', 0, 6), 'y');
	share(&first);
	CHECK_EQUAL(share(&second), 1);
	CHECK_EQUAL(share(&first), 0);
	comes_back(&first);
	comes_back(&second);
}

/* A resident process gives back what it retains; and one that hands its memory over keeps nothing.  */
static void gives_it_back(void)
{
	test_at("given back");
	turn_to(&second);
	controller_command(AFFINODE_COMMAND_TRIM, 0);
	PAGE_UNTIL(page.retained_bytes == 0);
	turn_to(&first);
	controller_park();
	CHECK_EQUAL(controller_reply(controller_command(AFFINODE_COMMAND_RESUME, HANDS_OVER)).status, AFFINODE_OK);
	CHECK_EQUAL(tell(&first.sleeper, 'c', 0, 0), 'y');
	PAGE_UNTIL(page.shared_bytes == 0);
	CHECK_EQUAL(packs_in_memory().count, 0);
}

/* What one was killed with is there for the other, and its folder is removed, though a child of it lives on.  */
static void one_is_killed(void)
{
	test_at("killed");
	share(&first);
	share(&second);
	CHECK_EQUAL(share(&first), 0);
	CHECK_EQUAL(folders(), 2);
	CHECK_EQUAL(tell(&second.sleeper, 'F', 0, 0), 'y');
	sharer_kill(&second);
	do /* the child may not have let the lock of its parent's folder go yet */
		share(&first);
	while (folders() != 1);
	PAGE_UNTIL(page.copy_bytes == CHUNKS * CHUNK); /* its own alone by now */
	comes_back(&first);
	sharer_start(&second, "b");
	CHECK_EQUAL(tell(&second.sleeper, 's', 0, 6), 'y');
	CHECK_EQUAL(tell(&second.sleeper, 's', 1, 5), 'y');
	CHECK_EQUAL(share(&second), 0);
	CHECK_EQUAL(packs_in_memory().bytes, WEIGHTS * CHUNK);
	comes_back(&second);
}

/* What one process alone has in packs goes to the disk as any of its memory.  */
static void goes_to_disk(void)
{
	test_at("to the disk");
	share(&second);
	sharer_kill(&second);
	share(&first);
	PAGE_UNTIL(page.copy_bytes == CHUNKS * CHUNK);
	CHECK_EQUAL(controller_reply(controller_spill(1 << 30, store)).bytes, CHUNKS * CHUNK);
	PAGE_UNTIL(page.shared_bytes == 0 && page.disk_bytes == CHUNKS * CHUNK);
	comes_back(&first);
	turn_to(&first);
	CHECK_EQUAL(controller_reply(controller_spill(0, store)).status, AFFINODE_OK); /* forgotten */
}

/* An image has all of it, and the process no folder and no pack any more.  */
static void hibernates(void)
{
	test_at("into an image");
	sharer_start(&second, "b");
	CHECK_EQUAL(tell(&second.sleeper, 's', 0, 6), 'y');
	CHECK_EQUAL(tell(&second.sleeper, 's', 1, 5), 'y');
	share(&first);
	share(&second);
	CHECK_EQUAL(share(&first), 0);
	turn_to(&first);
	PAGE_UNTIL(page.shared_bytes == WEIGHTS * CHUNK);
	CHECK_EQUAL(hibernate(&first.sleeper), CHUNKS * CHUNK);
	CHECK_EQUAL(folders(), 1);
	wake(&first.sleeper);
	comes_back(&second);
	share(&second);
	CHECK_EQUAL(share(&first), 0);
	comes_back(&first);
}

/* What is the process's own does not keep a lot of which it needs little.  */
static void lots_come_back(void)
{
	uint32_t lot;

	test_at("lots");
	turn_to(&first);
	controller_trim();
	lot = controller_lend(MiB(128));
	controller_park();
	PAGE_UNTIL(page.lot_bytes == MiB(128));
	share(&second);
	share(&first);
	CHECK_EQUAL(controller_noticed(AFFINODE_NOTIFY_LOT_END, NULL), lot);
	PAGE_UNTIL(page.copy_bytes == OWN * CHUNK && page.lot_bytes == 0);
	comes_back(&first);
	comes_back(&second);
}

static void refused(const char *folder, enum affinode_status status, const char *why)
{
	struct affinode_reply reply = controller_reply(controller_share(folder, NUMBER));

	CHECK_EQUAL(reply.status, status);
	if (!strstr(reply.text, why))
		test_fail(__FILE__, __LINE__, reply.text, 0);
}

static void only_what_is_private(void)
{
	test_at("folders that others may enter");
	turn_to(&first);
	controller_park();
	refused(store, AFFINODE_FAILED, "not in host memory");
	CHECK_EQUAL(chmod(users, 0755), 0);
	refused(shared, AFFINODE_REFUSED, "others may enter");
	CHECK_EQUAL(chmod(users, 0700), 0);
	CHECK_EQUAL(chmod(shared, 0777), 0);
	refused(shared, AFFINODE_FAILED, "no sticky bit");
	CHECK_EQUAL(chmod(shared, 01777), 0);
	if (geteuid() == 0) {
		CHECK_EQUAL(chown(users, 12345, 0), 0);
		refused(shared, AFFINODE_REFUSED, "another user");
		CHECK_EQUAL(chown(users, 0, 0), 0);
	}
	share(&first);
	comes_back(&first);
}

static void ends(struct sharer *sharer)
{
	test_at("ended");
	share(sharer);
	CHECK_EQUAL(folders(), 1);
	CHECK_EQUAL(tell(&sharer->sleeper, 'e', 0, 0), 0);
	CHECK_EQUAL(child_wait(sharer->sleeper.pid), 0);
	CHECK_EQUAL(folders(), 0);
}

int main(int argc, char **argv)
{
	test_begin(argc, argv, 100);
	depth_ask();
	if (test_role)
		sleeper_main();
	shared_begin();
	comes_once();
	each_changes_by_itself();
	folder_goes();
	gives_it_back();
	one_is_killed();
	lots_come_back();
	goes_to_disk();
	hibernates();
	only_what_is_private();
	sharer_kill(&second);
	ends(&first);
	return 0;
}
