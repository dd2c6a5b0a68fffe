#include "board.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "../sim/machine/fault_board.h"
#include "harness.h"

static struct sim_fault_board *board;
static char struck[sizeof(board->struck)];

void board_make(void)
{
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "%s/board", getenv("AFFINODE_SIM_DIR"));
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	CHECK_EQUAL(ftruncate(fd, SIM_FAULT_BOARD_SIZE), 0);
	board = mmap(NULL, SIM_FAULT_BOARD_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(board != MAP_FAILED);
	close(fd);
	setenv("AFFINODE_SIM_FAULT_BOARD", path, 1);
}

void board_begin(int argc, char **argv, unsigned deadline_s)
{
	test_begin(argc, argv, deadline_s);
	board_make();
	cuda_start();
	controller_accept();
}

void board_arm(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	CHECK(vsnprintf(board->text, sizeof(board->text), format, list) < (int)sizeof(board->text));
	va_end(list);
	memset(board->struck, 0, sizeof(board->struck));
	__atomic_store_n(&board->calls, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&board->met, 0, __ATOMIC_RELAXED);
	__atomic_add_fetch(&board->generation, 1, __ATOMIC_RELEASE);
}

unsigned board_disarm(void)
{
	unsigned met = board_met();

	memcpy(struck, board->struck, sizeof(struck));
	board_arm("%s", "");
	return met;
}

unsigned board_met(void)
{
	return __atomic_load_n(&board->met, __ATOMIC_ACQUIRE);
}

bool board_holds(void)
{
	return __atomic_load_n(&board->held, __ATOMIC_ACQUIRE) != 0;
}

bool board_holds_in(uint32_t epoch)
{
	UNTIL(board_holds() || (controller_pump() && (controller_is_prepared(epoch) || controller_replied(epoch))));
	return board_holds();
}

const char *board_struck(void)
{
	return struck;
}

unsigned board_calls(void)
{
	return __atomic_load_n(&board->calls, __ATOMIC_ACQUIRE);
}

int64_t board_registered_bytes(void)
{
	return __atomic_load_n(&board->registered_bytes, __ATOMIC_ACQUIRE);
}

/* TEST_STRIDE: 1 for each and every call. Runs begin at any step, so that several come to all.  */
unsigned board_stride(void)
{
	const char *given = getenv("TEST_STRIDE");

	if (given && atoi(given) > 0)
		return (unsigned)atoi(given);
	return 41; /* odd, for programs change with the step's number what they do */
}

unsigned board_first_step(void)
{
	return 1 + (unsigned)(test_seed % board_stride());
}

void board_at_every_call(bool (*fails_at)(const char *, unsigned), const char *name)
{
	for (int plus = 0; plus < 2; plus++)
		AT_EVERY_CALL(fails_at(plus ? "+" : "", nth), "%s failed", name);
	test_step[0] = 0;
}
