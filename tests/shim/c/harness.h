/* What every test program stands on: checks, a deadline, a seed, and a controller's end of the link.
 *
 * A program is its own controller: it listens in a folder of its own, so its threads (or a child) use CUDA while `main`
 * says park and resume. Waiting is always for a condition, and the deadline ends what hangs.  */
#ifndef TEST_HARNESS_H
#define TEST_HARNESS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "protocol.h"

#include "cuda.h"

/* Make the folder, the socket and the environment; call it first. After `deadline_s` the program fails.  */
void test_begin(int argc, char **argv, unsigned deadline_s);
extern uint64_t test_seed;
extern char test_step[640]; /* what is being tried now, for whoever reads of a failure */
uint64_t test_random(uint64_t *state);
uint64_t test_now_ns(void);
/* How often to repeat what is different each time: a third of it under sanitizers, and TEST_ROUNDS times as often.  */
unsigned test_rounds(unsigned usual);

void test_say_page(void); /* what the shim says of itself, on stderr */
_Noreturn void test_fail(const char *file, int line, const char *what, long value);
#define CHECK(condition)                                             \
	do {                                                         \
		if (!(condition))                                    \
			test_fail(__FILE__, __LINE__, #condition, 0); \
	} while (0)
#define CHECK_EQUAL(value, expected)                                                        \
	do {                                                                                \
		long value_ = (long)(value);                                                \
		if (value_ != (long)(expected))                                             \
			test_fail(__FILE__, __LINE__, #value " is not " #expected, value_); \
	} while (0)
#define CUDA(call) CHECK_EQUAL(cu.call, CUDA_SUCCESS)
/* Until the condition holds; the deadline is the test's.  */
#define UNTIL(condition)            \
	do {                        \
		while (!(condition)) \
			test_pause(); \
	} while (0)
void test_pause(void);

void thread_start(pthread_t *thread, void *(*body)(void *), void *argument);
void thread_join(pthread_t thread);
/* Until the flag is set, or the thread has been asleep for so long that it waits for something; the flag.  */
bool thread_waits_or(pid_t thread, _Atomic bool *flag);

/* The controller. One shim at a time; `controller_accept` takes the next and welcomes it.  */
void controller_accept(void);
void controller_accept_silently(void); /* without a welcome */
void controller_welcome(void);
void controller_drop(void);       /* close the link */
void controller_stop(void);       /* and the listener: as if killed */
void controller_listen_again(void);
int controller_fd(void);
struct affinode_hello controller_hello(void); /* of the shim that was accepted last */
void controller_send(uint16_t type, void *message, uint32_t size, uint32_t epoch);
uint32_t controller_command(uint32_t command, uint64_t argument);
uint32_t controller_command_by(uint32_t command, uint64_t deadline_ns);
void controller_answer_room(uint32_t request, bool granted);
/* Resume on the GPU with that UUID, as NVML writes it; `more`: other move flags.  */
uint32_t controller_resume_on(const char *gpu, uint64_t more);
struct affinode_reply controller_reply(uint32_t epoch);
bool controller_replied(uint32_t epoch);
/* Of a move in two steps: wait until it is prepared; false: it ended before. Then, or sooner, decide.  */
bool controller_prepared(uint32_t epoch);
bool controller_is_prepared(uint32_t epoch);
void controller_decide(uint32_t epoch, bool commit);
/* Hand over a lot of host memory (a multiple of 32 MiB); its number.  */
uint32_t controller_lend(uint64_t bytes);
/* Park or resume, and wait: the reply's status.  */
int controller_move(uint32_t command);
/* Park surely: again, while this machine is too slow for the mover's patience with a call or the GPU.  */
void controller_park(void);
/* Wait for the next notice of that kind: its number, its bytes.  */
uint32_t controller_noticed(uint32_t kind, uint64_t *bytes);
/* Read what came, if anything did; false: the shim closed the link.  */
bool controller_pump(void);
unsigned controller_heartbeats(void); /* that were among it, since the shim was accepted */

struct affinode_page page_read(void);
/* Until the condition on `page` holds.  */
#define PAGE_UNTIL(condition)                                                  \
	do {                                                                   \
		for (struct affinode_page page = page_read(); !(condition);) { \
			controller_pump();                                     \
			test_pause();                                          \
			page = page_read();                                    \
		}                                                              \
	} while (0)

/* This program again, with one argument more, as a process of its own; its exit status.  */
pid_t child_start(const char *role);
int child_wait(pid_t pid);
extern const char *test_role; /* NULL in the parent */

#endif
