/* What every test program stands on: checks, a deadline, a seed, threads and children.
 *
 * A program is its own controller (controller.h): it listens in a folder of its own, so its threads (or a child) use CUDA
 * while `main` says park and resume. Waiting is always for a condition, and the deadline ends what hangs.  */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda.h"

/* Make the folder, the socket and the environment; call it first. After `deadline_s` the program fails.  */
void test_begin(int argc, char **argv, unsigned deadline_s);
extern uint64_t test_seed;
extern char test_step[640]; /* what is being tried now, for the log of a failure */
__attribute__((format(printf, 1, 2))) void test_at(const char *format, ...); /* that it is this */
uint64_t test_random(uint64_t *state);
uint64_t test_now_ns(void);
/* How often to repeat what is different each time: a third of it under sanitizers, and TEST_ROUNDS times as often.  */
unsigned test_rounds(unsigned usual);

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

/* What a thread of its own does, until call_end; in between it has returned, or waits for something.  */
struct call {
	void (*what)(void);
	pthread_t thread;
	_Atomic pid_t thread_id;
	_Atomic bool returned;
};
void call_begin(struct call *call, void (*what)(void));
bool call_waits(struct call *call);
void call_end(struct call *call);

/* This program again, with one argument more, as a process of its own; its exit status.  */
pid_t child_start(const char *role);
/* The same, with a socket between the two: one end is *talk here, the other TALK_FD there.  */
#define TALK_FD 100
pid_t child_start_talking(const char *role, int *talk);
int child_wait(pid_t pid);
extern const char *test_role; /* NULL in the parent */

#include "controller.h"
