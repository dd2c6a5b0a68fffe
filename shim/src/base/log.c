#include "base/log.h"

#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "base/environment.h"
#include "base/monotonic_futex.h"

static int log_fd = -1;

void log_open(void)
{
	const char *path = environment_now(AFFINODE_ENV_LOG);

	if (path && path[0] && log_fd < 0)
		log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
}

static void write_line(int fd, const char *head, const char *format, va_list args)
{
	char line[512];
	int n = snprintf(line, sizeof(line), "%s", head);
	int room = (int)sizeof(line) - n - 1;
	int m = vsnprintf(line + n, (size_t)room, format, args);

	n += m < room ? m : room - 1;
	line[n++] = '\n';
	ssize_t written = write(fd, line, (size_t)n);
	(void)written;
}

void log_line(const char *format, ...)
{
	char head[64];
	va_list args;

	if (log_fd < 0)
		return;
	snprintf(head, sizeof(head), "%.6f %d ", (double)clock_ns() / 1e9, (int)getpid());
	va_start(args, format);
	write_line(log_fd, head, format, args);
	va_end(args);
}

void tell_person(const char *format, ...)
{
	struct pollfd err = {.fd = STDERR_FILENO, .events = POLLOUT};
	va_list args;

	/* Never block on a full pipe whose reader may need a lock that this thread holds.  */
	if (poll(&err, 1, 0) != 1 || !(err.revents & POLLOUT))
		return;
	va_start(args, format);
	write_line(STDERR_FILENO, "affinode: ", format, args);
	va_end(args);
}
