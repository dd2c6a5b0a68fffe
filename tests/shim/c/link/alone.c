/* The controller is gone: a resident process does not notice; a parked one whose calls wait takes its GPU back by itself,
 * as soon as there is room, loses nothing while there is none, and can be interrupted.  */
#include "neighbour.h"

#include <signal.h>

#define BYTES MiB(64)

static CUdeviceptr block;
static _Atomic unsigned interrupts;

static void on_interrupt(int number)
{
	(void)number;
	atomic_fetch_add(&interrupts, 1);
}

int main(int argc, char **argv)
{
	struct neighbour neighbour;
	pthread_t thread;
	uint64_t begin;

	setenv("AFFINODE_SIM_MEMORY", "320MiB", 1);
	test_begin(argc, argv, 40);
	neighbour_main();
	signal(SIGINT, on_interrupt);
	log_begin();
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
	controller_start_again();
	controller_park();
	neighbour = neighbour_start(0);
	controller_stop();
	read_a_word(&thread, block);
	UNTIL(resumes_without_room() >= 2);
	CHECK_EQUAL(atomic_load(&word_read), -1);
	/* There is no controller to say CANCEL: the interrupt itself does.  */
	CHECK_EQUAL(kill(getpid(), SIGINT), 0);
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&word_read), CUDA_ERROR_DEVICE_UNAVAILABLE);
	CHECK_EQUAL(atomic_load(&interrupts), 1);
	neighbour_end(neighbour);
	do { /* calls that come right after it are not kept waiting either */
		test_pause();
		read_a_word(&thread, block);
		thread_join(thread);
	} while (atomic_load(&word_read) == CUDA_ERROR_DEVICE_UNAVAILABLE);
	CHECK_EQUAL(atomic_load(&word_read), CUDA_SUCCESS);
	CHECK(holds_pattern(block, BYTES, 95, 0));
	return 0;
}
