/* The controller is gone: a resident process does not notice; a parked one whose calls wait takes its GPU back by itself,
 * as soon as there is room, loses nothing while there is none, and can be interrupted.  */
#include "harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES MiB(64)

static CUdeviceptr block;
static _Atomic unsigned interrupts;

static void on_interrupt(int number)
{
	(void)number;
	atomic_fetch_add(&interrupts, 1);
}

/* Another process that holds the GPU until its standard input ends.  */
static void neighbour(void)
{
	CUdeviceptr at;
	char byte;

	cuda_start();
	at = cuda_fill(0);
	CHECK_EQUAL(write(4, "+", 1), 1);
	CHECK_EQUAL(read(3, &byte, 1), 1);
	CUDA(MemFree(at));
}

static pid_t neighbour_start(int *to, int *from)
{
	int down[2], up[2];
	pid_t pid;

	CHECK_EQUAL(pipe(down), 0);
	CHECK_EQUAL(pipe(up), 0);
	CHECK_EQUAL(dup2(down[0], 3), 3);
	CHECK_EQUAL(dup2(up[1], 4), 4);
	setenv("AFFINODE_DISABLE", "1", 1);
	pid = child_start("neighbour");
	unsetenv("AFFINODE_DISABLE");
	*to = down[1];
	*from = up[0];
	return pid;
}

/* From the shim's log: an attempt is too short for its state to be seen for certain.  */
static int resumes_without_room(void)
{
	FILE *log = fopen(getenv("AFFINODE_LOG"), "re");
	char line[512];
	int n = 0;

	CHECK(log != NULL);
	while (fgets(line, sizeof(line), log))
		n += strstr(line, "resume: status 3,") != NULL; /* AFFINODE_NO_GPU_ROOM */
	fclose(log);
	return n;
}

int main(int argc, char **argv)
{
	char log[] = "/tmp/affinode-alone-XXXXXX";
	pthread_t thread;
	uint64_t begin;
	int to, from;
	char byte;

	setenv("AFFINODE_SIM_MEMORY", "320MiB", 1);
	/* The numbers that the neighbour's pipes will have, before anything else takes them.  */
	if (argc == 1)
		CHECK(dup2(0, 3) == 3 && dup2(0, 4) == 4);
	test_begin(argc, argv, 40);
	if (test_role) {
		neighbour();
		return 0;
	}
	signal(SIGINT, on_interrupt);
	close(mkstemp(log));
	setenv("AFFINODE_LOG", log, 1);
	cuda_start();
	controller_accept();
	block = cuda_block(BYTES, 95);

	/* Parked, and then alone. A call that waits is served after two seconds.  */
	controller_park();
	controller_stop();
	begin = test_now_ns();
	read_a_word(&thread, block);
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&word_read), CUDA_SUCCESS);
	CHECK(test_now_ns() - begin > 1500000000u); /* a controller was given time to come back */
	CHECK(holds_pattern(block, BYTES, 95, 0));

	/* One comes, parks it, and goes while another process takes the GPU: no room, nothing lost, tried again.  */
	controller_listen_again();
	controller_accept();
	controller_park();
	pid_t pid = neighbour_start(&to, &from);
	CHECK_EQUAL(read(from, &byte, 1), 1);
	controller_stop();
	read_a_word(&thread, block);
	UNTIL(resumes_without_room() >= 2);
	CHECK_EQUAL(atomic_load(&word_read), -1);
	/* There is no controller to say CANCEL: the interrupt itself does.  */
	CHECK_EQUAL(kill(getpid(), SIGINT), 0);
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&word_read), CUDA_ERROR_DEVICE_UNAVAILABLE);
	CHECK_EQUAL(atomic_load(&interrupts), 1);
	CHECK_EQUAL(write(to, "-", 1), 1);
	CHECK_EQUAL(child_wait(pid), 0);
	do { /* calls that come right after it are not kept waiting either */
		test_pause();
		read_a_word(&thread, block);
		thread_join(thread);
	} while (atomic_load(&word_read) == CUDA_ERROR_DEVICE_UNAVAILABLE);
	CHECK_EQUAL(atomic_load(&word_read), CUDA_SUCCESS);
	CHECK(holds_pattern(block, BYTES, 95, 0));
	unlink(log);
	return 0;
}
