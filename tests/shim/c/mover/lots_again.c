/* Lots that a controller of one user lends, takes back and lends again: what was given back stays mapped and registered, and is not
 * touched, whatever others write into it; it goes when it is to be forgotten, and with the link. And so it is
 * when any one driver call fails on the way.  */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "board.h"
#include "contents.h"
#include "harness.h"

#define LOT MiB(32)
/* Of parks: no host memory but lots.  */
#define LOTS_ALONE (1ull << AFFINODE_MOVE_BUDGET_SHIFT)

static int lot; /* its memory file, as the controller and other borrowers have it */

static void make_lot(void)
{
	lot = memfd_create("lot", MFD_CLOEXEC);
	CHECK(lot >= 0);
	CHECK_EQUAL(posix_fallocate(lot, 0, (off_t)LOT), 0);
}

static uint64_t word_of_others(uint64_t turn, size_t i)
{
	return turn * 0x9e3779b97f4a7c15ull + i + 1;
}

static void others_use_it(uint64_t turn)
{
	static uint64_t words[MiB(2) / 8];

	for (size_t i = 0; i < MiB(2) / 8; i++)
		words[i] = word_of_others(turn, i);
	for (size_t at = 0; at < LOT; at += MiB(2))
		CHECK_EQUAL(pwrite(lot, words, MiB(2), (off_t)at), MiB(2));
}

static bool is_as_others_left_it(uint64_t turn)
{
	static uint64_t words[MiB(2) / 8];

	for (size_t at = 0; at < LOT; at += MiB(2)) {
		CHECK_EQUAL(pread(lot, words, MiB(2), (off_t)at), MiB(2));
		for (size_t i = 0; i < MiB(2) / 8; i++)
			if (words[i] != word_of_others(turn, i))
				return false;
	}
	return true;
}

/* Mappings of the lot in this process: the shim's, for the test has none.  */
static unsigned mappings(void)
{
	unsigned long inode;
	struct stat status;
	unsigned count = 0;
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "re");

	CHECK(maps != NULL);
	CHECK_EQUAL(fstat(lot, &status), 0);
	while (fgets(line, sizeof(line), maps))
		count += sscanf(line, "%*s %*s %*s %*s %lu", &inode) == 1 && inode == status.st_ino && strstr(line, "/memfd:lot");
	fclose(maps);
	return count;
}

static void change(void)
{
	CHECK_EQUAL(contents_change(CONTENTS_BROKEN), CUDA_SUCCESS);
	contents_change_now(CONTENTS_ONE_CHUNK);
}

static struct affinode_reply move(uint32_t command, uint64_t how)
{
	struct affinode_reply reply;

	do
		reply = controller_reply(controller_command(command, how));
	while (reply.status == AFFINODE_BUSY && !board_met());
	snprintf(test_step + strlen(test_step), sizeof(test_step) - strlen(test_step), "; move %u: %d %s", command, reply.status,
		 reply.text);
	return reply;
}

static void come_back(void)
{
	CHECK_EQUAL(move(AFFINODE_COMMAND_RESUME, 0).status, AFFINODE_OK);
	contents_are_right();
}

static uint32_t lend(void)
{
	struct affinode_page page;
	uint32_t number = controller_lend_file(lot, LOT);

	do {
		if (controller_count(AFFINODE_NOTIFY_LOT_END)) /* a trim that was under way took it back: it was empty */
			number = controller_lend_file(lot, LOT);
		test_pause();
		page = page_read();
	} while (page.lot_bytes != LOT || page.retained_bytes < LOT); /* until it is registered */
	return number;
}

static void park_into_it(void)
{
	change();
	CHECK_EQUAL(move(AFFINODE_COMMAND_PARK, LOTS_ALONE).status, AFFINODE_OK);
}

static void give_back(uint32_t number)
{
	controller_command(AFFINODE_COMMAND_TRIM, 0);
	CHECK_EQUAL(controller_noticed(AFFINODE_NOTIFY_LOT_END, NULL), number);
	PAGE_UNTIL(page.lot_bytes == 0);
}

/* Until the shim has unmapped and unregistered it.  */
static void has_gone(int64_t registered)
{
	UNTIL(mappings() == 0);
	CHECK(board_registered_bytes() <= registered);
}

/* Lent, used and given back.  */
static void use(void)
{
	uint32_t number = lend();

	park_into_it();
	come_back();
	give_back(number);
	CHECK_EQUAL(mappings(), 1);
}

static void lent_again_after_others(void)
{
	int64_t registered;
	uint32_t number;

	test_at("lent again");
	use();
	registered = board_registered_bytes();
	CHECK(registered >= (int64_t)LOT);
	for (uint64_t turn = 1; turn <= 3; turn++) {
		others_use_it(turn);
		change();
		controller_park(); /* into memory of its own */
		CHECK(is_as_others_left_it(turn));
		come_back();
		controller_command(AFFINODE_COMMAND_TRIM, 0);
		PAGE_UNTIL(page.retained_bytes < LOT);
		CHECK(is_as_others_left_it(turn));
		board_arm("cuMemHostRegister:UNKNOWN:1+"); /* it is registered still */
		number = lend();
		CHECK_EQUAL(board_disarm(), 0);
		park_into_it();
		CHECK(!is_as_others_left_it(turn));
		come_back();
		give_back(number);
		CHECK_EQUAL(mappings(), 1);
		CHECK_EQUAL(board_registered_bytes(), registered);
	}
}

static void forgotten(void)
{
	int64_t registered = board_registered_bytes();
	uint32_t number;

	test_at("forgotten");
	controller_forget(lot);
	has_gone(registered - (int64_t)LOT);
	controller_forget(lot); /* none is mapped */
	use();
	number = lend();
	park_into_it();
	controller_forget(lot); /* it holds contents: it goes when they have gone */
	come_back();
	give_back(number);
	has_gone(registered - (int64_t)LOT);
}

static void lent_twice(void)
{
	uint32_t number;

	test_at("lent twice");
	number = lend();
	controller_lend_file(lot, LOT);
	park_into_it();
	controller_lend_file(lot, LOT);
	CHECK_EQUAL(page_read().lot_bytes, LOT);
	come_back();
	give_back(number);
	use();
	CHECK_EQUAL(controller_count(AFFINODE_NOTIFY_LOT_END), 0);
}

/* Once its end is told, the controller may cut it: it is not touched any more.  */
static void cut(void)
{
	uint32_t number;

	test_at("cut");
	number = lend();
	park_into_it();
	controller_command(AFFINODE_COMMAND_TRIM, 0);
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_PARK), AFFINODE_NOTHING); /* what was sent before has been read */
	CHECK_EQUAL(controller_count(AFFINODE_NOTIFY_LOT_END), 0);
	come_back();
	give_back(number);
	CHECK_EQUAL(ftruncate(lot, 0), 0);
	change();
	controller_park();
	come_back();
	controller_forget(lot);
	UNTIL(mappings() == 0);
	CHECK_EQUAL(posix_fallocate(lot, 0, (off_t)LOT), 0);
	use();
}

/* In the child there is no mapping, and the parent goes on.  */
static void forked(bool lent)
{
	uint32_t number = 0;
	int status;
	pid_t pid;

	test_at("%s", lent ? "fork, lent" : "fork, given back");
	if (lent) {
		number = lend();
		park_into_it();
	}
	CHECK_EQUAL(mappings(), 1);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		_exit(mappings() == 0 ? 42 : 1);
	CHECK_EQUAL(waitpid(pid, &status, 0), pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
	if (lent) {
		come_back();
		give_back(number);
	} else {
		use();
	}
}

static void link_lost(bool lent)
{
	test_at("%s", lent ? "link lost, lent" : "link lost, given back");
	use();
	if (lent) {
		lend();
		park_into_it();
	}
	controller_stop();
	if (!lent)
		UNTIL(mappings() == 0);
	controller_start_again();
	if (lent) { /* the next controller does not know of it, and it goes with what is in it */
		CHECK_EQUAL(mappings(), 1);
		come_back();
		park_into_it();
		come_back();
		controller_command(AFFINODE_COMMAND_TRIM, 0);
		UNTIL(mappings() == 0);
		PAGE_UNTIL(page.lot_bytes == 0);
		CHECK_EQUAL(controller_count(AFFINODE_NOTIFY_LOT_END), 0);
	}
	use();
}

static void registration_is_refused(void)
{
	int64_t registered;
	uint32_t number;

	test_at("registration refused");
	controller_forget(lot);
	UNTIL(mappings() == 0);
	registered = board_registered_bytes();
	for (int i = 0; i < 2; i++) {
		board_arm("cuMemHostRegister:OPERATING_SYSTEM:1+");
		number = lend();
		park_into_it();
		come_back();
		give_back(number);
		CHECK(board_disarm() > 0 || i > 0); /* what was refused is not tried again while it is mapped */
		CHECK_EQUAL(mappings(), 1);
		CHECK_EQUAL(board_registered_bytes(), registered);
	}
	controller_forget(lot);
	has_gone(registered);
	use();
	CHECK_EQUAL(board_registered_bytes(), registered + (int64_t)LOT);
}

/* From lending to forgetting; false: no such call is made. What the driver does not unregister stays for the time.  */
static bool fails_at(const char *plus, unsigned nth)
{
	bool forget = nth % 4 == 1;
	uint32_t number;
	unsigned met;

	test_at("failing at call %u%s", nth, plus);
	if (nth % 3 == 0) {
		controller_forget(lot);
		UNTIL(mappings() == 0);
	}
	others_use_it(nth);
	change();
	board_arm("*:UNKNOWN:%u%s", nth, plus);
	number = controller_lend_file(lot, LOT);
	if (move(AFFINODE_COMMAND_PARK, LOTS_ALONE).status == AFFINODE_OK) {
		if (nth % 2)
			board_arm("*:UNKNOWN:%u%s", 1 + nth / 2, plus); /* on the way back */
		move(AFFINODE_COMMAND_RESUME, 0);
	}
	controller_command(AFFINODE_COMMAND_TRIM, 0);
	if (forget)
		controller_forget(lot);
	else if (page_read().state == AFFINODE_STATE_RESIDENT && controller_noticed(AFFINODE_NOTIFY_LOT_END, NULL) == number)
		number = 0;
	met = board_disarm();
	snprintf(test_step + strlen(test_step), sizeof(test_step) - strlen(test_step), "; %s", board_struck());
	if (page_read().state == AFFINODE_STATE_PARKED)
		come_back();
	contents_are_right();
	controller_command(AFFINODE_COMMAND_TRIM, 0);
	if (number)
		CHECK_EQUAL(controller_noticed(AFFINODE_NOTIFY_LOT_END, NULL), number);
	PAGE_UNTIL(page.lot_bytes == 0);
	if (forget) {
		controller_forget(lot);
		UNTIL(mappings() == 0);
	}
	return met > 0;
}

int main(int argc, char **argv)
{
	test_begin(argc, argv, 140);
	board_make();
	make_lot();
	cuda_start();
	controller_accept();
	contents_make();
	lent_again_after_others();
	forgotten();
	lent_twice();
	cut();
	forked(false);
	forked(true);
	link_lost(false);
	link_lost(true);
	registration_is_refused();
	board_at_every_call(fails_at, "a lot's way");
	use();
	return 0;
}
