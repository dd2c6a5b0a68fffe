// A C++ exception leaves a driver call through the shim's frames: they unwind, and the gate knows that the call is over.
#include <cstdint>
#include <pthread.h>
#include <stdexcept>

extern "C" {
using calling_fn = int (*)(void (*)(void *), void *);
void test_begin(int argc, char **argv, unsigned deadline_s);
void cuda_start(void);
calling_fn cuda_calling(const char *name);
void controller_accept(void);
int controller_move(uint32_t command);
void controller_park(void);
[[noreturn]] void test_fail(const char *file, int line, const char *what, long value);
int cuda_block_made(void);
int cuda_block_right(void);
}

enum { RESUME = 2 };

#define CHECK(condition) \
	((condition) ? (void)0 : test_fail(__FILE__, __LINE__, #condition, 0))

static void throwing(void *depth)
{
	throw *static_cast<int *>(depth);
}

static calling_fn calls[2];

// An exception through two driver calls, one inside the other.
static void nested(void *depth)
{
	calls[1](throwing, depth);
}

static void *work(void *)
{
	for (int i = 0; i < 100; i++) {
		int thrown = 7 + i, caught = 0;

		try {
			calls[i % 2](i % 3 ? nested : throwing, &thrown);
		} catch (int value) {
			caught = value;
		}
		CHECK(caught == thrown);
	}
	return nullptr;
}

int main(int argc, char **argv)
{
	test_begin(argc, argv, 20);
	cuda_start();
	calls[0] = cuda_calling("cuLaunch");
	calls[1] = cuda_calling("cuTestCall");
	controller_accept();
	CHECK(cuda_block_made());
	for (int i = 0; i < 5; i++) {
		pthread_t thread;

		work(nullptr);
		CHECK(pthread_create(&thread, nullptr, work, nullptr) == 0);
		CHECK(pthread_join(thread, nullptr) == 0);
		controller_park(); // nothing seems to be inside any more
		CHECK(controller_move(RESUME) == 0);
		CHECK(cuda_block_right());
	}
	return 0;
}
