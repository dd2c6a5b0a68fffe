#define _GNU_SOURCE
#include "grant.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "environment.h"
#include "log.h"

#define BLANKS " \t\r\n"

/* O_NONBLOCK: what is no plain file must not hold up the link.  */
static ssize_t read_file(const char *path, char *text, size_t size)
{
	ssize_t n, got = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

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

/* Without the blanks around it, moved to the front.  */
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

size_t grant_read(char text[AFFINODE_GRANT_SIZE])
{
	const char *file = getenv(AFFINODE_ENV_GRANT_FILE), *grant = getenv(AFFINODE_ENV_GRANT);
	ssize_t n;

	if (file && file[0]) {
		char read_text[AFFINODE_GRANT_SIZE + 1];

		n = read_file(file, read_text, sizeof(read_text));
		if (n > 0 && n <= (ssize_t)AFFINODE_GRANT_SIZE) {
			memcpy(text, read_text, (size_t)n);
			return trim(text, (size_t)n);
		}
		log_line("the grant in %s cannot be read: %s", file,
			 n < 0 ? strerror((int)-n) : n ? "it is too long" : "it is empty");
	}
	if (!grant || strlen(grant) > AFFINODE_GRANT_SIZE)
		return 0;
	n = (ssize_t)strlen(grant);
	memcpy(text, grant, (size_t)n);
	return trim(text, (size_t)n);
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
