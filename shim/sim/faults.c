/* Fault injection by AFFINODE_SIM_FAULTS and the board.  */
#include "faults.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "futex.h"
#include "machine.h"
#include "settings.h"

#define MAX_FAULTS 32
#define BOARD_POLL_MS 1

enum kind { KIND_ERROR, KIND_KILL, KIND_CORRUPT, KIND_FAIL, KIND_TAKE, KIND_HOLD };

struct fault {
	char name[64];
	enum kind kind;
	CUresult error;
	uint64_t bytes;
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
static __thread enum fault_effect effect;

static CUresult error_named(const char *name)
{
#define ERROR(error, number, text)   \
	if (!strcmp(name, #error))   \
		return (CUresult)number;
#include "errors.h"
	return (CUresult)atoi(name);
}

static bool read_kind(struct fault *fault, const char *what)
{
	static const struct {
		const char *name;
		enum kind kind;
	} kinds[] = {{"KILL", KIND_KILL}, {"CORRUPT", KIND_CORRUPT}, {"FAIL", KIND_FAIL}, {"HOLD", KIND_HOLD}};

	for (unsigned i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		if (!strcmp(what, kinds[i].name)) {
			fault->kind = kinds[i].kind;
			return true;
		}
	if (!strncmp(what, "TAKE=", 5)) {
		fault->kind = KIND_TAKE;
		fault->bytes = settings_bytes(what + 5, UINT64_MAX);
		return fault->bytes != UINT64_MAX;
	}
	fault->kind = KIND_ERROR;
	fault->error = error_named(what);
	return fault->error != CUDA_SUCCESS;
}

static void read_faults(const char *given)
{
	char *text = strdup(given), *rest = text, *entry;

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

/* The fault that strikes this call, copied, for the lock is not held while it does; false: none does.  */
static bool strike(const char *name, struct fault *struck)
{
	bool met = false;

	pthread_mutex_lock(&lock);
	if (board) {
		uint32_t now = __atomic_load_n(&board->generation, __ATOMIC_ACQUIRE);

		if (now != generation)
			read_faults(board->text);
		generation = now;
		__atomic_add_fetch(&board->calls, 1, __ATOMIC_RELAXED);
	}
	for (unsigned i = 0; i < fault_count; i++) {
		struct fault *fault = &faults[i];

		if (strcmp(fault->name, "*") && strcmp(fault->name, name))
			continue;
		fault->calls++;
		if (met || !(fault->calls == fault->nth || (fault->onwards && fault->calls > fault->nth)))
			continue;
		*struck = *fault;
		struck->armed = generation;
		met = true;
	}
	if (met && board) {
		strncpy(board->struck, name, sizeof(board->struck) - 1);
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
	effect = FAULT_NONE;
	if ((!fault_count && !board) || !strike(name, &fault))
		return CUDA_SUCCESS;
	switch (fault.kind) {
	case KIND_KILL:
		kill(getpid(), SIGKILL);
		break;
	case KIND_CORRUPT:
		effect = FAULT_CORRUPT;
		break;
	case KIND_FAIL:
		effect = FAULT_FAIL;
		break;
	case KIND_TAKE:
		if (machine())
			machine_take_foreign(fault.bytes);
		break;
	case KIND_HOLD:
		if (board)
			wait_for_board(fault.armed);
		break;
	case KIND_ERROR:
		return fault.error;
	}
	return CUDA_SUCCESS;
}

enum fault_effect faults_effect(void)
{
	return effect;
}
