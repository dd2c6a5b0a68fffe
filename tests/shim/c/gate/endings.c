/* However a thread leaves a driver call, by longjmp, by cancellation or by its end, the gate knows that it left: parking
 * works and the page shows no call in flight. (Exceptions: endings_exception.cc.)  */
#include <setjmp.h>
#include <sys/syscall.h>

#include "harness.h"

static calling_fn calls[2];
static CUdeviceptr block;
static _Atomic int stage;
static __thread jmp_buf back;

/* Left, or about to: nothing is inside any more, and the process can be parked and resumed.  */
static void parks(void)
{
	int status;

	do {
		status = controller_move(AFFINODE_COMMAND_PARK);
		CHECK(status == AFFINODE_OK || status == AFFINODE_BUSY);
	} while (status != AFFINODE_OK);
	CHECK_RESUMES();
	CHECK(holds_pattern(block, MiB(2), 51, 0));
}

static void jump(void *unused)
{
	(void)unused;
	longjmp(back, 1);
}

static void sleep_inside(void *unused)
{
	(void)unused;
	atomic_store(&stage, 1);
	for (;;)
		pause(); /* a cancellation point */
}

static void end_inside(void *unused)
{
	(void)unused;
	atomic_store(&stage, 1);
	UNTIL(atomic_load(&stage) == 2);
	syscall(SYS_exit, 0);
}

static void nested(void *fn)
{
	CHECK(holds_pattern(block, 4096, 51, 0)); /* a gated call inside a gated call */
	CHECK_EQUAL(calls[1]((void (*)(void *))fn, NULL), CUDA_SUCCESS);
}

static void nothing(void *unused)
{
	(void)unused;
}

static __attribute__((noinline)) void call_deep(calling_fn call, void (*body)(void *), void *data)
{
	volatile char room[4096];

	room[0] = 0;
	call(body, data);
	room[0]++;
}

static void *jumps(void *call)
{
	CUDA(CtxSetCurrent(cuda_context));
	if (setjmp(back) == 0)
		call_deep((calling_fn)call, jump, NULL);
	atomic_store(&stage, 1);
	UNTIL(atomic_load(&stage) == 2); /* parked meanwhile, without another call of this thread */
	for (volatile int i = 0; i < 100; i++) {
		if (setjmp(back) == 0)
			call_deep((calling_fn)call, jump, NULL);
		CHECK(holds_pattern(block, 4096, 51, 0));
	}
	return NULL;
}

static __attribute__((unused)) void *sleeps(void *call)
{
	CUDA(CtxSetCurrent(cuda_context));
	((calling_fn)call)(sleep_inside, NULL);
	return NULL;
}

static void *ends(void *call)
{
	CUDA(CtxSetCurrent(cuda_context));
	((calling_fn)call)(end_inside, NULL);
	return NULL;
}

static __attribute__((unused)) void *waits(void *unused)
{
	(void)unused;
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	CUDA(CtxSetCurrent(cuda_context));
	launch_add(NULL, block, 4, 1);
	return NULL;
}

static __attribute__((unused)) void cancelled_inside(calling_fn call)
{
	pthread_t thread;

	atomic_store(&stage, 0);
	thread_start(&thread, sleeps, (void *)call);
	UNTIL(atomic_load(&stage) == 1);
	CHECK(controller_move(AFFINODE_COMMAND_PARK) != AFFINODE_OK); /* a thread is inside */
	CHECK_EQUAL(pthread_cancel(thread), 0);
	thread_join(thread);
	parks();
	PAGE_UNTIL(page.calls_in_flight == 0);
}

static __attribute__((unused)) void cancelled_at_the_gate(void)
{
	pthread_t thread;

	controller_park();
	thread_start(&thread, waits, NULL);
	PAGE_UNTIL(page.want == 1);
	CHECK_EQUAL(pthread_cancel(thread), 0);
	thread_join(thread);
	controller_command(AFFINODE_COMMAND_CANCEL_END, 0); /* wakes the page's writer */
	PAGE_UNTIL(page.want == 0);
	PAGE_UNTIL(page.state == AFFINODE_STATE_PARKED);
	CHECK_RESUMES();
	parks();
}

static void ended_inside(calling_fn call)
{
	pthread_t thread;

	atomic_store(&stage, 0);
	thread_start(&thread, ends, (void *)call);
	UNTIL(atomic_load(&stage) == 1); /* it is inside: a page with main's own call in it says nothing of it */
	PAGE_UNTIL(page.calls_in_flight == 1);
	atomic_store(&stage, 2);
	pthread_detach(thread);
}

int main(int argc, char **argv)
{
	pthread_t thread;

	test_begin(argc, argv, 40);
	cuda_start();
	calls[0] = cuda_calling("cuLaunch");
	calls[1] = cuda_calling("cuTestCall");
	controller_accept();
	block = cuda_block(MiB(2), 51);
	for (int i = 0; i < 2; i++) {
		CHECK_EQUAL(calls[i](nested, (void *)nothing), CUDA_SUCCESS);
		parks();
		atomic_store(&stage, 0);
		thread_start(&thread, jumps, (void *)calls[i]);
		UNTIL(atomic_load(&stage) == 1);
		parks();
		atomic_store(&stage, 2);
		thread_join(thread);
		parks();
#ifndef __SANITIZE_THREAD__ /* which loses count in a thread that is cancelled under a library it does not watch */
		for (int n = 0; n < 5; n++)
			cancelled_inside(calls[i]);
#endif
		/* First what is never parked: an eligible process is one with nothing in flight.  */
		ended_inside(calls[i]);
		PAGE_UNTIL(page.calls_in_flight == 0);
		parks();
		ended_inside(calls[i]);
		parks();
	}
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* neither survives a cancel at any instruction */
	for (int n = 0; n < 5; n++)
		cancelled_at_the_gate();
#endif
	PAGE_UNTIL(page.calls_in_flight == 0);
	return 0;
}
