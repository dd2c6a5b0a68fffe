#define _GNU_SOURCE
#include "link/grant.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/environment.h"
#include "base/log.h"
#include "base/monotonic_futex.h"
#include "base/own_thread.h"
#include "base/per_process.h"
#include "state/controller.h"

#define BLANKS " \t\r\n"
/* Less than the controller waits for a HELLO (5 s).  */
#define PATIENCE_NS (3 * S_NS)

static ssize_t read_file(const char *path, char *text, size_t size)
{
	ssize_t n, got = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	do {
		n = read(fd, text + got, size - (size_t)got);
		got += n > 0 ? n : 0;
	} while ((n > 0 && (size_t)got < size) || (n < 0 && errno == EINTR));
	n = n < 0 ? -errno : got;
	close(fd);
	return n;
}

/* Move the text without the blanks around it to the front, and return its length.  */
static size_t trim(char *text, size_t size)
{
	size_t begin = 0;

	while (size > 0 && (!text[size - 1] || strchr(BLANKS, text[size - 1])))
		size--;
	while (begin < size && strchr(BLANKS, text[begin]))
		begin++;
	memmove(text, text + begin, size - begin);
	return size - begin;
}

/* The reading that is under way or done. Its fields are the reader's until `done` is set, and the link's thread's after that.  */
static OF_PROCESS struct {
	_Atomic bool done;
	ssize_t size; /* or a negative errno */
	char text[AFFINODE_GRANT_SIZE + 1];
} reading;
static OF_PROCESS bool is_begun, is_given_up;
static uint64_t begun_ns;

static void *read_grant(void *file)
{
	reading.size = read_file(file, reading.text, sizeof(reading.text));
	atomic_store(&reading.done, true);
	link_wake();
	return NULL;
}

static const char *named_file(void)
{
	const char *file = environment_noted(AFFINODE_ENV_GRANT_FILE);

	return file && file[0] ? file : NULL;
}

void grant_begin(void)
{
	const char *file = named_file();

	if (!file || (is_begun && !atomic_load(&reading.done)))
		return; /* an earlier reading hangs: one thread is enough for that */
	atomic_store(&reading.done, false);
	is_given_up = false;
	begun_ns = clock_ns();
	is_begun = thread_begin(read_grant, (void *)file) == 0;
	if (!is_begun)
		log_line("no thread to read the grant in %s", file);
}

bool grant_is_ready(void)
{
	if (!is_begun || is_given_up || atomic_load(&reading.done))
		return true;
	if (clock_ns() - begun_ns < PATIENCE_NS)
		return false;
	is_given_up = true;
	log_line("the grant in %s cannot be read: its disk does not answer", named_file());
	return true;
}

size_t grant_take(char text[AFFINODE_GRANT_SIZE])
{
	const char *file = named_file(), *grant = environment_noted(AFFINODE_ENV_GRANT);
	size_t size;

	if (file && is_begun && !is_given_up && atomic_load(&reading.done)) {
		ssize_t n = reading.size;

		if (n > 0 && n <= (ssize_t)AFFINODE_GRANT_SIZE) {
			memcpy(text, reading.text, (size_t)n);
			return trim(text, (size_t)n);
		}
		log_line("the grant in %s cannot be read: %s", file,
			 n < 0 ? strerror((int)-n) : n ? "it is too long" : "it is empty");
	}
	if (!grant || strlen(grant) > AFFINODE_GRANT_SIZE)
		return 0;
	size = strlen(grant);
	memcpy(text, grant, size);
	return trim(text, size);
}

int grant_send(int fd, const char *text, size_t size)
{
	for (size_t at = 0; at < size; at += AFFINODE_GRANT_PIECE) {
		struct affinode_grant message = {.offset = (uint32_t)at, .size = (uint32_t)size};
		size_t piece = size - at < AFFINODE_GRANT_PIECE ? size - at : AFFINODE_GRANT_PIECE;

		message.header = (struct affinode_header){AFFINODE_LINK_MAGIC, AFFINODE_PROTOCOL_VERSION, AFFINODE_GRANT,
							  sizeof(message), 0};
		memcpy(message.piece, text + at, piece);
		if (send(fd, &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof(message))
			return errno ? -errno : -EIO;
	}
	return 0;
}
