#define _GNU_SOURCE
#include "context_depth/nvml/hidden_child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/monotonic_futex.h"

#define STACK_BYTES ((size_t)64 << 10)
#define GUARD_BYTES ((size_t)64 << 10) /* a page, whatever its size here */
/* syscall(3) reads its last argument from its caller's stack, whether there is one or not. A crash there would end the
 * application too: before Linux 5.16 one with a core dump ends every process that shares the memory.  */
#define ABOVE_BYTES 128
#define KERNEL_SIGSET_BYTES 8
#define SIGNALS 64
#define CLOSE_RANGE 436     /* close_range(2), the same number everywhere; Linux 5.9 */
#define ABOVE_STANDARD 10   /* a descriptor that dup3 to 0, 1 or 2 does not hit */
#define LOOK_NS (200000ull) /* between looks whether it ended */
#define LAST_WAIT_NS S_NS   /* for a killed one; longer means that the kernel holds it */
#define MOST_DESCRIPTORS 65536u

/* In the two processes nothing of a sanitizer's must run: they have no thread of its making. Nor of a library that
 * interposes libc's calls: so these are the kernel's own, none of which is re-entered or asks for memory.  */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define APART __attribute__((no_sanitize("address", "thread", "undefined")))
#else
#define APART
#endif

struct run {
	const struct command *command;
	struct printed *printed;
	uint64_t ns, until_ns;
	int from, to, nothing; /* the pipe's ends and /dev/null, in the process in between */
	int result;
};

/* Of the kernel's sigaction: all zero is SIG_DFL, whatever the order of its fields.  */
struct kernel_action {
	uint64_t words[4];
};

static pthread_mutex_t stacks_lock = PTHREAD_MUTEX_INITIALIZER; /* one run at a time */
static char *stack_between, *stack_program;

static char *stack_make(void)
{
	char *at = mmap(NULL, GUARD_BYTES + STACK_BYTES + GUARD_BYTES, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);

	if (at == MAP_FAILED)
		return NULL;
	mprotect(at, GUARD_BYTES, PROT_NONE);
	mprotect(at + GUARD_BYTES + STACK_BYTES, GUARD_BYTES, PROT_NONE); /* what reads above must be seen in every test */
	return at + GUARD_BYTES + STACK_BYTES - ABOVE_BYTES;
}

int spawn_start(void)
{
	if (!stack_between)
		stack_between = stack_make();
	if (!stack_program)
		stack_program = stack_make();
	return stack_between && stack_program ? 0 : -ENOMEM;
}

/* clone(2) with a stack of its own, for vfork's kind of child; `body` never returns. Not glibc's: before 2.25 it
 * wrote over the calling thread's idea of its own id.  */
APART static long clone_on(char *stack, unsigned long flags, void (*body)(struct run *), struct run *run)
{
	void **top = (void **)stack;

	*--top = (void *)(uintptr_t)body;
	*--top = run;
#if defined(__x86_64__)
	long result;
	register long child_tid __asm__("r10") = 0;
	register long tls __asm__("r8") = 0;

	__asm__ volatile("syscall\n\t"
			 "testq %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "xorl %%ebp, %%ebp\n\t"
			 "popq %%rdi\n\t"
			 "popq %%rax\n\t"
			 "call *%%rax\n\t"
			 "ud2\n"
			 "1:"
			 : "=a"(result)
			 : "a"((long)SYS_clone), "D"(flags), "S"(top), "d"(0l), "r"(child_tid), "r"(tls)
			 : "rcx", "r11", "memory", "cc");
	return result;
#elif defined(__aarch64__)
	register long number __asm__("x8") = SYS_clone;
	register long result __asm__("x0") = (long)flags;
	register void **at __asm__("x1") = top;
	register long parent_tid __asm__("x2") = 0;
	register long tls __asm__("x3") = 0;
	register long child_tid __asm__("x4") = 0;

	__asm__ volatile("svc #0\n\t"
			 "cbnz x0, 1f\n\t"
			 "mov x29, xzr\n\t"
			 "mov x30, xzr\n\t"
			 "ldp x0, x9, [sp], #16\n\t"
			 "blr x9\n\t"
			 "brk #1\n"
			 "1:"
			 : "+r"(result)
			 : "r"(number), "r"(at), "r"(parent_tid), "r"(tls), "r"(child_tid)
			 : "memory", "cc");
	return result;
#endif
}

APART static uint64_t now_ns(void)
{
	struct timespec now = {0, 0};

	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * S_NS + (uint64_t)now.tv_nsec;
}

/* What a program ignores its children would ignore, too, and handlers are for the application's process alone.  */
APART static void signals_default(void)
{
	struct kernel_action plain = {{0, 0, 0, 0}};

	for (int number = 1; number <= SIGNALS; number++)
		syscall(SYS_rt_sigaction, number, &plain, NULL, KERNEL_SIGSET_BYTES);
}

/* In a table of its own: the application's stays as it is, and its locks, too. One after the other on kernels and in sandboxes
 * without close_range.  */
APART static void close_all(void)
{
	struct rlimit limit = {0, 0};
	unsigned most = MOST_DESCRIPTORS;

	if (syscall(CLOSE_RANGE, 0u, ~0u, 0u) == 0)
		return;
	if (syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &limit) == 0 && limit.rlim_cur < most)
		most = (unsigned)limit.rlim_cur;
	for (unsigned number = 0; number < most; number++)
		syscall(SYS_close, number);
}

/* Becomes the program. All signals stay blocked: one for the application's process group (Ctrl-C) must not end a
 * look.  */
APART static void become(struct run *run)
{
	syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	if (run->nothing >= 0) {
		syscall(SYS_dup3, run->nothing, 0, 0);
		syscall(SYS_dup3, run->nothing, 2, 0);
	}
	syscall(SYS_dup3, run->to, 1, 0);
	syscall(SYS_execve, run->command->path, run->command->arguments, run->command->environment);
	run->result = -errno;
	syscall(SYS_exit_group, 127);
}

/* Its output, to the end of it or of the time: 0 or a negative errno.  */
APART static int listen_to(struct run *run)
{
	struct printed *printed = run->printed;

	for (;;) {
		struct pollfd ready = {.fd = run->from, .events = POLLIN};
		uint64_t now = now_ns(), left = run->until_ns > now ? run->until_ns - now : 0;
		struct timespec wait = {(time_t)(left / S_NS), (long)(left % S_NS)};
		long got = syscall(SYS_ppoll, &ready, 1, &wait, NULL, KERNEL_SIGSET_BYTES);

		if (got == 0)
			return -ETIMEDOUT;
		if (got < 0 && errno != EINTR)
			return -errno;
		if (got < 0)
			continue;
		got = syscall(SYS_read, run->from, printed->text + printed->length,
			      printed->size - 1 - printed->length);
		if (got <= 0)
			return got < 0 ? -errno : 0;
		printed->length += (size_t)got;
		if (printed->length == printed->size - 1)
			return -EMSGSIZE;
	}
}

/* Wait for its end until then: 0 or a negative errno.  */
APART static int bury(long pid, uint64_t until_ns, int *status)
{
	struct timespec pause = {0, LOOK_NS};

	for (;;) {
		long got = syscall(SYS_wait4, pid, status, WNOHANG, NULL);

		if (got == pid)
			return 0;
		if (got < 0 && errno != EINTR)
			return -errno;
		if (now_ns() >= until_ns)
			return -ETIMEDOUT;
		syscall(SYS_nanosleep, &pause, NULL);
	}
}

APART static int attend(struct run *run, long pid)
{
	int status = 0, result = listen_to(run);

	if (!result)
		result = bury(pid, run->until_ns, &status);
	if (result) {
		syscall(SYS_kill, pid, SIGKILL);
		bury(pid, now_ns() + LAST_WAIT_NS, &status);
		return result;
	}
	if (!WIFEXITED(status))
		return -ECHILD;
	run->printed->status = WEXITSTATUS(status);
	return 0;
}

APART static int open_ends(struct run *run)
{
	int ends[2] = {-1, -1};

	run->nothing = (int)syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR | O_CLOEXEC);
	if (run->nothing >= 0)
		run->nothing = (int)syscall(SYS_fcntl, run->nothing, F_DUPFD_CLOEXEC, ABOVE_STANDARD);
	if (syscall(SYS_pipe2, ends, O_CLOEXEC) != 0)
		return -errno;
	run->from = ends[0];
	run->to = (int)syscall(SYS_fcntl, ends[1], F_DUPFD_CLOEXEC, ABOVE_STANDARD);
	if (run->to < 0)
		return -errno;
	syscall(SYS_close, ends[1]);
	return 0;
}

/* The process in between. If the application is killed, so is it, and then the program.  */
APART static void between(struct run *run)
{
	long pid;

	syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	signals_default();
	close_all();
	run->until_ns = now_ns() + run->ns;
	run->result = open_ends(run);
	if (!run->result) {
		pid = clone_on(stack_program, CLONE_VM | CLONE_VFORK | SIGCHLD, become, run);
		syscall(SYS_close, run->to);
		if (pid < 0)
			run->result = (int)pid;
		else if (run->result)
			syscall(SYS_wait4, pid, NULL, 0, NULL); /* execve failed */
		else
			run->result = attend(run, pid);
	}
	syscall(SYS_exit_group, 0);
}

int spawn_run(const struct command *command, uint64_t ns, struct printed *printed)
{
	uint64_t all = ~0ull, before = 0;
	struct run run = {.command = command, .printed = printed, .ns = ns, .result = -ECHILD};
	int error = errno, status = 0;
	long pid;

	memset(printed->text, 0, printed->size);
	printed->length = 0;
	/* Also those that glibc keeps for itself: a handler must not run twice in one memory.  */
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, KERNEL_SIGSET_BYTES);
	pthread_mutex_lock(&stacks_lock);
	pid = clone_on(stack_between, CLONE_VM | CLONE_VFORK, between, &run);
	if (pid < 0)
		run.result = (int)pid;
	else
		while (syscall(SYS_wait4, pid, &status, __WALL, NULL) < 0 && errno == EINTR)
			;
	if (!WIFEXITED(status))
		run.result = -ECHILD; /* not by itself: what it says is not believed */
	pthread_mutex_unlock(&stacks_lock);
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, KERNEL_SIGSET_BYTES);
	errno = error;
	return run.result;
}
