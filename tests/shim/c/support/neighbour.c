#include "neighbour.h"

void neighbour_main(void)
{
	char byte;

	if (!test_role || strcmp(test_role, "neighbour") != 0)
		return;
	cuda_start();
	cuda_fill(strtoull(getenv("TEST_SPARE"), NULL, 0));
	CHECK_EQUAL(write(TALK_FD, "+", 1), 1);
	CHECK(read(TALK_FD, &byte, 1) >= 0);
	exit(0);
}

struct neighbour neighbour_start(uint64_t spare)
{
	struct neighbour neighbour;
	char text[32], byte;

	snprintf(text, sizeof(text), "%llu", (unsigned long long)spare);
	setenv("TEST_SPARE", text, 1);
	setenv("AFFINODE_DISABLE", "1", 1);
	neighbour.pid = child_start_talking("neighbour", &neighbour.talk);
	unsetenv("AFFINODE_DISABLE");
	CHECK_EQUAL(read(neighbour.talk, &byte, 1), 1);
	return neighbour;
}

void neighbour_end(struct neighbour neighbour)
{
	close(neighbour.talk);
	CHECK_EQUAL(child_wait(neighbour.pid), 0);
}

static char log_path[] = "/tmp/affinode-log-XXXXXX";

static void remove_log(void)
{
	if (!test_role)
		unlink(log_path);
}

void log_begin(void)
{
	close(mkstemp(log_path));
	setenv("AFFINODE_LOG", log_path, 1);
	atexit(remove_log);
}

unsigned resumes_without_room(void)
{
	FILE *log = fopen(log_path, "re");
	char line[512];
	unsigned n = 0;

	CHECK(log != NULL);
	while (fgets(line, sizeof(line), log))
		n += strstr(line, "resume: status 3,") != NULL; /* AFFINODE_NO_GPU_ROOM */
	fclose(log);
	return n;
}
