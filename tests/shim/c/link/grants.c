/* The grant is read anew for each connection, from a disk that may hang: the link's thread goes on meanwhile, the page too,
 * and after three seconds the environment's grant has to do. What the program does with its environment later changes
 * nothing: another thread's getenv beside it would be a race.  */
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "harness.h"

static char path[96];

static void write_file(const char *grant)
{
	char made[112];
	FILE *file;

	snprintf(made, sizeof(made), "%s.new", path);
	file = fopen(made, "w");
	CHECK(file != NULL);
	CHECK(fputs(grant, file) >= 0);
	CHECK_EQUAL(fclose(file), 0);
	CHECK_EQUAL(rename(made, path), 0);
}

/* What follows the HELLO.  */
static bool grant_is(const char *expected)
{
	struct affinode_grant grant;
	ssize_t n;

	CHECK(controller_hello().flags & AFFINODE_HELLO_GRANT);
	n = recv(controller_fd(), &grant, sizeof(grant), 0);
	CHECK_EQUAL(n, sizeof(grant));
	CHECK_EQUAL(grant.header.type, AFFINODE_GRANT);
	return grant.size == strlen(expected) && strcmp(grant.piece, expected) == 0;
}

/* The file is read and never written: the reader hangs as on a disk that does not answer.  */
static void hang(void)
{
	CHECK_EQUAL(unlink(path), 0);
	CHECK_EQUAL(mkfifo(path, 0600), 0);
}

/* Let it go, without a word.  */
static void let_go(void)
{
	int fd = -1;

	UNTIL((fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC)) >= 0); /* it is being read */
	close(fd);
}

int main(int argc, char **argv)
{
	uint64_t begun;

	test_begin(argc, argv, 60);
	snprintf(path, sizeof(path), "%s", getenv("AFFINODE_SOCKET"));
	snprintf(strrchr(path, '/'), 16, "/grant");
	write_file(" first\n");
	setenv("AFFINODE_GRANT_FILE", path, 1);
	setenv("AFFINODE_GRANT", "older", 1);
	setenv("AFFINODE_KERNEL_ID", "kernel", 1);
	cuda_start();
	CHECK_EQUAL(setenv("AFFINODE_GRANT_FILE", "/nowhere", 1), 0);
	CHECK_EQUAL(unsetenv("AFFINODE_GRANT"), 0);
	CHECK_EQUAL(unsetenv("AFFINODE_KERNEL_ID"), 0);
	CHECK_EQUAL(setenv("AFFINODE_SOCKET", "/nowhere/node.sock", 1), 0);
	controller_accept_silently();
	CHECK(grant_is("first"));
	controller_welcome();

	write_file("second");
	controller_drop();
	controller_accept_silently();
	CHECK(grant_is("second"));
	CHECK(strcmp(controller_hello().kernel_id, "kernel") == 0);
	controller_welcome();

	hang();
	controller_drop();
	begun = page_read().heartbeat_ns;
	for (int i = 0; i < 3; i++, begun = page_read().heartbeat_ns)
		UNTIL(page_read().heartbeat_ns > begun); /* the link's thread goes round */
	controller_accept_silently();
	CHECK(grant_is("older"));
	controller_welcome();
	/* One reader hangs: no other is begun, and no thread waits for it again.  */
	controller_drop();
	controller_accept_silently();
	CHECK(grant_is("older"));
	let_go();
	write_file("third");
	do { /* until that reader has gone */
		controller_welcome();
		controller_drop();
		controller_accept_silently();
	} while (!grant_is("third"));
	return 0;
}
