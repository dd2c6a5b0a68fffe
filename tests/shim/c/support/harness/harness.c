#include "harness.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "watcher.h"

uint64_t test_seed;
char test_step[640];
const char *test_role;

static char folder[64];
static char *program;
static pid_t owner; /* the process that made the folder */

uint64_t test_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t test_random(uint64_t *state)
{
	*state += 0x9e3779b97f4a7c15ull;
	uint64_t z = *state;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

unsigned test_rounds(unsigned usual)
{
	const char *given = getenv("TEST_ROUNDS");
	unsigned times = given && atoi(given) > 0 ? (unsigned)atoi(given) : 1;

#ifdef SHIM_LINKED
	usual = usual < 3 ? 1 : usual / 3;
#endif
	return usual * times;
}

void test_at(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vsnprintf(test_step, sizeof(test_step), format, list);
	va_end(list);
}

void test_pause(void)
{
	struct timespec t = {0, 500000};

	nanosleep(&t, NULL);
}

_Noreturn void test_fail(const char *file, int line, const char *what, long value)
{
	fprintf(stderr, "%s:%d: %s (%ld) seed %llu%s%s\n", file, line, what, value, (unsigned long long)test_seed,
		test_role ? " in child " : "", test_role ? test_role : "");
	if (test_step[0])
		fprintf(stderr, "at %s\n", test_step);
	test_say_page();
	watcher_kill_children();
	_exit(1);
}

static void remove_folder(void)
{
	char command[128];

	if (getpid() != owner)
		return;
	unsetenv("LD_PRELOAD");
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	if (system(command) != 0)
		fprintf(stderr, "%s stays\n", folder);
}

static void parent_begin(void)
{
	char path[96];

	owner = getpid();
	snprintf(folder, sizeof(folder), "/tmp/affinode-test-XXXXXX");
	CHECK(mkdtemp(folder) != NULL);
	atexit(remove_folder);
	snprintf(path, sizeof(path), "%s/node.sock", folder);
	setenv("AFFINODE_SOCKET", path, 1);
	snprintf(path, sizeof(path), "%s/gpu", folder);
	CHECK_EQUAL(mkdir(path, 0700), 0);
	setenv("AFFINODE_SIM_DIR", path, 1);
	controller_begin(folder);
}

void test_begin(int argc, char **argv, unsigned deadline_s)
{
	const char *given = getenv("TEST_SEED");

	program = argv[0];
	test_role = argc > 1 ? argv[1] : NULL;
	test_seed = given ? strtoull(given, NULL, 0) : test_now_ns() & 0xffffffffu;
	if (!test_role) {
		printf("%s seed %llu\n", argv[0], (unsigned long long)test_seed);
		fflush(stdout);
		parent_begin();
	}
	signal(SIGPIPE, SIG_IGN);
	watcher_start(deadline_s);
}

void thread_start(pthread_t *thread, void *(*body)(void *), void *argument)
{
	CHECK_EQUAL(pthread_create(thread, NULL, body, argument), 0);
}

void thread_join(pthread_t thread)
{
	CHECK_EQUAL(pthread_join(thread, NULL), 0);
}

static bool is_asleep(pid_t thread)
{
	char path[64], state = 0;
	FILE *stat;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)thread);
	stat = fopen(path, "re");
	if (!stat)
		return false;
	if (fscanf(stat, "%*d (%*[^)]) %c", &state) != 1)
		state = 0;
	fclose(stat);
	return state == 'S';
}

bool thread_waits_or(pid_t thread, _Atomic bool *flag)
{
	unsigned looks = 0;

	/* It may sleep shortly for other reasons; and one that wakes to look again is rarely asleep twice in a row where
	 * others want the processor.  */
	while (looks < 50 && !atomic_load(flag)) {
		looks += is_asleep(thread);
		test_pause();
	}
	return atomic_load(flag);
}

static void *make_call(void *argument)
{
	struct call *call = argument;

	atomic_store(&call->thread_id, gettid());
	call->what();
	atomic_store(&call->returned, true);
	return NULL;
}

void call_begin(struct call *call, void (*what)(void))
{
	call->what = what;
	atomic_store(&call->thread_id, 0);
	atomic_store(&call->returned, false);
	thread_start(&call->thread, make_call, call);
	UNTIL(atomic_load(&call->thread_id));
}

bool call_waits(struct call *call)
{
	return !thread_waits_or(atomic_load(&call->thread_id), &call->returned);
}

void call_end(struct call *call)
{
	thread_join(call->thread);
}

pid_t child_start(const char *role)
{
	char seed[32];
	pid_t pid;

	snprintf(seed, sizeof(seed), "%llu", (unsigned long long)test_seed);
	setenv("TEST_SEED", seed, 1);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		execl("/proc/self/exe", program, role, (char *)NULL);
		_exit(127);
	}
	watcher_add(pid);
	return pid;
}

pid_t child_start_talking(const char *role, int *talk)
{
	int ends[2];
	pid_t pid;

	CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	CHECK_EQUAL(dup2(ends[1], TALK_FD), TALK_FD);
	close(ends[1]);
	pid = child_start(role);
	close(TALK_FD);
	*talk = ends[0];
	return pid;
}

int child_wait(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		CHECK_EQUAL(errno, EINTR);
	watcher_remove(pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
