/* Fault injection by AFFINODE_SIM_FAULTS and the board.  */
#include "machine/faults.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "machine/fault_board.h"
#include "machine/futex.h"
#include "machine/machine.h"
#include "machine/settings.h"

#define MAX_FAULTS 32
#define BOARD_POLL_MS 1

enum kind { KIND_ERROR, KIND_KILL, KIND_CORRUPT, KIND_FAIL, KIND_LATE, KIND_TAKE, KIND_HOLD, KIND_STAY };

struct fault {
	char name[64];
	enum kind kind;
	CUresult error;
	uint64_t bytes; /* of a foreign process, or the least that is corrupted */
	unsigned nth;
	bool onwards;
	unsigned calls;
	uint32_t armed; /* generation of the board it was read from */
};

_Static_assert(sizeof(struct sim_fault_board) <= SIM_FAULT_BOARD_SIZE, "the board is one page");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fault faults[MAX_FAULTS];
static unsigned fault_count;
static struct sim_fault_board *board;
static uint32_t generation; /* of the board, as it was read last */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static __thread const char *called; /* by this thread, last */
static __thread bool stays;

static CUresult error_named(const char *name)
{
#define ERROR(error, number, text)   \
	if (!strcmp(name, #error))   \
		return (CUresult)number;
#include "driver/cuda_errors.h"
	return (CUresult)atoi(name);
}

static bool read_kind(struct fault *fault, const char *what)
{
	static const struct {
		const char *name;
		enum kind kind;
	} kinds[] = {{"KILL", KIND_KILL}, {"CORRUPT", KIND_CORRUPT}, {"FAIL", KIND_FAIL}, {"LATE", KIND_LATE},
		     {"HOLD", KIND_HOLD}, {"STAY", KIND_STAY}};
	const char *bytes = strchr(what, '=');

	for (unsigned i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		if (!strcmp(what, kinds[i].name)) {
			fault->kind = kinds[i].kind;
			return true;
		}
	if (bytes) {
		fault->kind = !strncmp(what, "TAKE=", 5) ? KIND_TAKE : KIND_CORRUPT;
		fault->bytes = settings_bytes(bytes + 1, UINT64_MAX);
		return fault->bytes != UINT64_MAX && (fault->kind == KIND_TAKE || !strncmp(what, "CORRUPT=", 8));
	}
	fault->kind = KIND_ERROR;
	fault->error = error_named(what);
	return fault->error != CUDA_SUCCESS;
}

static void read_faults(const char *given)
{
	/* The test may be writing the next text already: that one is read again, but this copy must end. */
	char *text = strndup(given, sizeof(board->text)), *rest = text, *entry;

	fault_count = 0;
	while (rest && (entry = strsep(&rest, ",")) && fault_count < MAX_FAULTS) {
		struct fault *fault = &faults[fault_count];
		char *name = strsep(&entry, ":"), *what = strsep(&entry, ":");

		memset(fault, 0, sizeof(*fault));
		if (!what || !*name || strlen(name) >= sizeof(fault->name) || !read_kind(fault, what))
			continue;
		strcpy(fault->name, name);
		fault->nth = entry ? (unsigned)strtoul(entry, NULL, 10) : 1;
		fault->onwards = entry && strchr(entry, '+');
		if (fault->nth)
			fault_count++;
	}
	free(text);
}

static void map_board(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	void *mapped;

	if (fd < 0)
		return;
	mapped = mmap(NULL, SIM_FAULT_BOARD_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (mapped != MAP_FAILED)
		board = mapped;
}

static void begin(void)
{
	const char *given = getenv("AFFINODE_SIM_FAULTS"), *path = getenv("AFFINODE_SIM_FAULT_BOARD");

	if (given)
		read_faults(given);
	if (path && *path)
		map_board(path);
}

static void note_struck(const char *name)
{
	size_t length = strlen(name), used = strnlen(board->struck, sizeof(board->struck) - 1);

	for (const char *at = board->struck; (at = strstr(at, name)); at += length)
		if ((at == board->struck || at[-1] == ' ') && at[length] == ' ')
			return;
	if (used + length + 2 > sizeof(board->struck))
		return;
	memcpy(board->struck + used, name, length);
	board->struck[used + length] = ' ';
	board->struck[used + length + 1] = 0;
}

/* Counted, and struck, where the call submits work: only then is it known how much.  */
static bool befalls_work(const struct fault *fault)
{
	return fault->kind == KIND_CORRUPT || fault->kind == KIND_FAIL || fault->kind == KIND_LATE;
}

static void look_at_board(void)
{
	uint32_t now = __atomic_load_n(&board->generation, __ATOMIC_ACQUIRE);

	if (now != generation)
		read_faults(board->text);
	generation = now;
}

/* The fault that strikes this call (or the work of `bytes` that it submits), copied, for the lock is not held while it
 * does; false: none does.  */
static bool strike(const char *name, bool work, uint64_t bytes, struct fault *struck)
{
	bool met = false;

	pthread_mutex_lock(&lock);
	if (board)
		look_at_board();
	if (board && !work)
		__atomic_add_fetch(&board->calls, 1, __ATOMIC_RELAXED);
	for (unsigned i = 0; i < fault_count; i++) {
		struct fault *fault = &faults[i];

		if ((strcmp(fault->name, "*") && strcmp(fault->name, name)) || befalls_work(fault) != work ||
		    (work && bytes < fault->bytes))
			continue;
		fault->calls++;
		if (met || !(fault->calls == fault->nth || (fault->onwards && fault->calls > fault->nth)))
			continue;
		*struck = *fault;
		struck->armed = generation;
		met = true;
	}
	if (met && board) {
		note_struck(name);
		__atomic_add_fetch(&board->met, 1, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
	return met;
}

/* With a time-out: not every language of a test can wake a futex.  */
static void wait_for_board(uint32_t armed)
{
	__atomic_add_fetch(&board->held, 1, __ATOMIC_ACQ_REL);
	while (__atomic_load_n(&board->generation, __ATOMIC_ACQUIRE) == armed)
		futex_wait(&board->generation, armed, BOARD_POLL_MS);
	__atomic_sub_fetch(&board->held, 1, __ATOMIC_ACQ_REL);
}

CUresult faults_next(const char *name)
{
	struct fault fault = {.kind = KIND_ERROR};

	pthread_once(&once, begin);
	called = name;
	stays = false;
	if ((!fault_count && !board) || !strike(name, false, 0, &fault))
		return CUDA_SUCCESS;
	if (fault.kind == KIND_KILL)
		kill(getpid(), SIGKILL);
	else if (fault.kind == KIND_TAKE && machine())
		machine_take_foreign(fault.bytes);
	else if (fault.kind == KIND_HOLD && board)
		wait_for_board(fault.armed);
	stays = fault.kind == KIND_STAY;
	return fault.error;
}

bool faults_stay(void)
{
	return stays;
}

enum fault_effect faults_effect(uint64_t bytes)
{
	struct fault fault = {.kind = KIND_ERROR};

	if (!called || (!fault_count && !board) || !strike(called, true, bytes, &fault))
		return FAULT_NONE;
	return fault.kind == KIND_CORRUPT ? FAULT_CORRUPT : fault.kind == KIND_LATE ? FAULT_LATE : FAULT_FAIL;
}

void faults_note_registered(int64_t bytes)
{
	if (board)
		__atomic_add_fetch(&board->registered_bytes, bytes, __ATOMIC_RELAXED);
}
