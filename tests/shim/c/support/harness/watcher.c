/* A thread that hangs cannot say where, so it is interrupted: by a signal that no thread blocks, whose handler notes the return
 * addresses on its stack. Everything else is read from /proc. No debugger is needed; addr2line, which comes with the
 * compiler, turns addresses into lines.  */
#include "watcher.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unwind.h>

#include "harness.h"
#ifdef SHIM_LINKED
int affinode_describe(char *text, size_t size);
#endif

#ifdef __SANITIZE_THREAD__
#define UNWATCHED __attribute__((no_sanitize("thread")))
#else
#define UNWATCHED
#endif

#define MAX_FRAMES 48
#define MAX_CHILDREN 64
#define ANSWER_MS 2000
#define CHILD_MS 5000
/* glibc keeps it to itself (SIGSETXID), so sigfillset and pthread_sigmask leave it out: threads that block all signals, as
 * the shim's do, take it too. The process is about to end: no other will use it.  */
#define INTERRUPT 33
#define TELL (SIGRTMAX - 1) /* asks a process's watcher for its report; blocked in all its threads */

#define LEAST_DEADLINE_S 120 /* on a machine with ten times as much to do, a program of seconds takes a minute */
#define AT_LENGTH 10 /* times that, where all steps of a move or more rounds are asked for */
static unsigned deadline;
static _Atomic pid_t children[MAX_CHILDREN];
extern char **environ;

static uintptr_t frames[MAX_FRAMES];
static _Atomic int frame_count, answered_tid;

void watcher_add(pid_t child)
{
	for (int i = 0; i < MAX_CHILDREN; i++) {
		pid_t none = 0;

		if (atomic_compare_exchange_strong(&children[i], &none, child))
			return;
	}
}

void watcher_remove(pid_t child)
{
	for (int i = 0; i < MAX_CHILDREN; i++) {
		pid_t same = child;

		atomic_compare_exchange_strong(&children[i], &same, 0);
	}
}

void watcher_kill_children(void)
{
	for (int i = 0; i < MAX_CHILDREN; i++)
		if (atomic_load(&children[i]) > 0)
			kill(atomic_load(&children[i]), SIGKILL);
}

void watcher_ask(pid_t child)
{
	kill(child, TELL);
}

/* dprintf would take memory and locks that a thread at rest may hold.  */
static __attribute__((format(printf, 1, 2))) void say(const char *format, ...)
{
	char line[1024];
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	n = (int)write(STDERR_FILENO, line, n < (int)sizeof(line) ? (size_t)n : sizeof(line) - 1);
	(void)n;
}

static UNWATCHED _Unwind_Reason_Code note_frame(struct _Unwind_Context *context, void *count)
{
	int *n = count;

	if (*n == MAX_FRAMES || !_Unwind_GetIP(context))
		return _URC_END_OF_STACK;
	frames[(*n)++] = _Unwind_GetIP(context);
	return _URC_NO_REASON;
}

static UNWATCHED void on_interrupt(int signal)
{
	int count = 0, error = errno;

	(void)signal;
	_Unwind_Backtrace(note_frame, &count);
	__atomic_store_n(&frame_count, count, __ATOMIC_RELEASE);
	__atomic_store_n(&answered_tid, (int)syscall(SYS_gettid), __ATOMIC_RELEASE);
	errno = error;
}

struct kernel_sigaction {
	void (*handler)(int);
	unsigned long flags;
	void (*restorer)(void);
	uint64_t mask;
};

/* Past glibc, which refuses to touch this signal, and past the sanitizer, which would put the handler off. glibc's own
 * handler, there since the first thread was made, lends the way back out of a handler.  */
static bool catch_interrupt(void)
{
	struct kernel_sigaction action;

	if (syscall(SYS_rt_sigaction, INTERRUPT, NULL, &action, sizeof(action.mask)) != 0 || !action.restorer) {
		struct sigaction other, none = {.sa_handler = SIG_IGN};

		/* or that of any handler that was ever set */
		sigaction(SIGWINCH, &none, &other);
		sigaction(SIGWINCH, &other, NULL);
		if (syscall(SYS_rt_sigaction, SIGWINCH, NULL, &action, sizeof(action.mask)) != 0)
			return false;
	}
	action.handler = on_interrupt;
	action.flags |= SA_RESTART;
	action.flags &= ~(unsigned long)SA_SIGINFO;
	return syscall(SYS_rt_sigaction, INTERRUPT, &action, NULL, sizeof(action.mask)) == 0;
}

static void read_line(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, text, size - 1) : -1;

	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = '\0';
	text[strcspn(text, "\n")] = '\0';
}

static void say_thread(pid_t tid)
{
	char path[64], name[32], stat[256], call[160], *state;

	snprintf(path, sizeof(path), "/proc/self/task/%d/comm", tid);
	read_line(path, name, sizeof(name));
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	read_line(path, stat, sizeof(stat));
	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", tid);
	read_line(path, call, sizeof(call));
	state = strrchr(stat, ')');
	say("thread %d %s, state %c, system call %s\n", tid, name, state && state[1] ? state[2] : '?', call);
}

/* Lines of the addresses that lie in one module, by addr2line; false: it is not here.  */
static bool say_lines(const char *module, char addresses[][24], int count)
{
	char *arguments[MAX_FRAMES + 4] = {"addr2line", "-fipse", (char *)module};
	char *clean[1] = {NULL}; /* not our preloaded library, nor our libcuda */
	posix_spawn_file_actions_t actions;
	int status, error;
	pid_t pid;

	for (int i = 0; i < count; i++)
		arguments[3 + i] = addresses[i];
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
	error = posix_spawnp(&pid, "addr2line", &actions, NULL, arguments, clean);
	posix_spawn_file_actions_destroy(&actions);
	if (error)
		return false;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static const char *module_of(uintptr_t address, uintptr_t *base)
{
	Dl_info info;

	if (!dladdr((void *)address, &info) || !info.dli_fname || !info.dli_fname[0])
		return NULL;
	*base = (uintptr_t)info.dli_fbase;
	if (((const ElfW(Ehdr) *)*base)->e_type == ET_EXEC)
		*base = 0;
	return strchr(info.dli_fname, '/') ? info.dli_fname : "/proc/self/exe";
}

/* Frames that follow each other in one module are asked about together.  */
static void say_frames(int count)
{
	char addresses[MAX_FRAMES][24];

	for (int i = 1, n; i < count; i += n) { /* the first is the handler itself */
		uintptr_t base, other;
		const char *module = module_of(frames[i], &base);

		for (n = 0; i + n < count; n++) {
			const char *next = module_of(frames[i + n], &other);

			if (n && (!module != !next || (module && other != base)))
				break;
			/* a return address is after the call: -1 is in it */
			snprintf(addresses[n], sizeof(addresses[n]), "%#lx",
				 (unsigned long)(frames[i + n] - 1 - (module ? base : 0)));
		}
		if (module && say_lines(module, addresses, n))
			continue;
		say("  in %s:", module ? module : "no module");
		for (int j = 0; j < n; j++)
			say(" %s", addresses[j]);
		say("\n");
	}
}

static void report_thread(pid_t tid)
{
	struct timespec ms = {0, 1000000};

	say_thread(tid);
	atomic_store(&answered_tid, 0);
	if (syscall(SYS_tgkill, getpid(), tid, INTERRUPT) != 0)
		return;
	for (int i = 0; i < ANSWER_MS && atomic_load(&answered_tid) != tid; i++)
		nanosleep(&ms, NULL);
	if (atomic_load(&answered_tid) == tid)
		say_frames(atomic_load(&frame_count));
	else
		say("  does not answer\n");
}

static void say_shim(void)
{
	int (*tell)(char *, size_t) = NULL;
	char text[8192];

#ifdef SHIM_LINKED
	tell = affinode_describe;
#else
	*(void **)&tell = dlsym(RTLD_DEFAULT, "affinode_describe");
#endif
	if (tell && tell(text, sizeof(text)) > 0)
		say("%s", text);
}

/* Of a child that has no watcher: forked, not executed.  */
static void say_other_processes(void)
{
	char path[64], text[256];

	snprintf(path, sizeof(path), "/proc/self/task/%d/children", getpid());
	read_line(path, text, sizeof(text));
	for (char *at = text, *end; *at; at = end) {
		long pid = strtol(at, &end, 10);
		char where[64], comm[64], call[160];

		if (end == at)
			break;
		snprintf(where, sizeof(where), "/proc/%ld/comm", pid);
		read_line(where, comm, sizeof(comm));
		snprintf(where, sizeof(where), "/proc/%ld/syscall", pid);
		read_line(where, call, sizeof(call));
		say("child %ld %s, system call %s\n", pid, comm, call);
	}
}

static void ask_children(void)
{
	struct timespec ms = {0, 1000000};

	for (int i = 0; i < MAX_CHILDREN; i++) {
		pid_t pid = atomic_load(&children[i]);
		siginfo_t info = {.si_pid = 0};

		if (pid <= 0 || kill(pid, TELL) != 0)
			continue;
		for (int waited = 0; waited < CHILD_MS && info.si_pid == 0; waited++) {
			nanosleep(&ms, NULL);
			if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0)
				break;
		}
	}
}

/* It is not said when it is written.  */
static UNWATCHED void copy_step(char *text)
{
	const volatile char *from = test_step;

	for (size_t i = 0; i < sizeof(test_step); i++)
		text[i] = from[i];
	text[sizeof(test_step) - 1] = '\0';
}

void watcher_report(void)
{
	char step[sizeof(test_step)];
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;

	copy_step(step);
	say("-- process %d%s%s, seed %llu%s%s\n", getpid(), test_role ? ", in child " : "", test_role ? test_role : "",
	    (unsigned long long)test_seed, step[0] ? ", at " : "", step);
	if (!catch_interrupt())
		say("no thread can be interrupted: %s\n", strerror(errno));
	test_say_page();
	say_shim();
	while (tasks && (task = readdir(tasks)) != NULL)
		if (atoi(task->d_name) > 0 && atoi(task->d_name) != (int)syscall(SYS_gettid))
			report_thread(atoi(task->d_name));
	if (tasks)
		closedir(tasks);
	say_other_processes();
	ask_children();
	say("-- end of process %d\n", getpid());
}

static void *watch(void *unused)
{
	uint64_t until = test_now_ns() + deadline * 1000000000ull, now;
	sigset_t tell;
	int got = -1;

	(void)unused;
	sigemptyset(&tell);
	sigaddset(&tell, TELL);
	while (got != TELL && (now = test_now_ns()) < until) {
		struct timespec t = {(time_t)((until - now) / 1000000000u), (long)((until - now) % 1000000000u)};

		got = sigtimedwait(&tell, NULL, &t);
	}
	if (got != TELL)
		say("%s hung: %u seconds have passed\n", program_invocation_name, deadline);
	watcher_report();
	watcher_kill_children();
	_exit(1);
	return NULL;
}

/* What is needed at the end is loaded now: nothing that hangs may be in its way.  */
static void load_what_is_needed(void)
{
	uintptr_t base;

	on_interrupt(0);
	module_of((uintptr_t)&watch, &base);
}

void watcher_start(unsigned deadline_s)
{
	pthread_t thread;
	sigset_t tell;

	deadline = deadline_s < LEAST_DEADLINE_S ? LEAST_DEADLINE_S : deadline_s;
	if (getenv("TEST_STRIDE") || getenv("TEST_ROUNDS"))
		deadline *= AT_LENGTH;
	load_what_is_needed();
	sigemptyset(&tell);
	sigaddset(&tell, TELL);
	CHECK_EQUAL(pthread_sigmask(SIG_BLOCK, &tell, NULL), 0);
	CHECK_EQUAL(pthread_create(&thread, NULL, watch, NULL), 0);
	CHECK_EQUAL(pthread_detach(thread), 0);
}
