/* Threads of ours.  */
#pragma once

#include <pthread.h>
#include <signal.h>

/* Begin a thread of ours, which is never waited for: no signal of the program's is delivered to it. 0, or a negative errno.  */
static inline int thread_begin(void *(*body)(void *), void *argument)
{
	sigset_t all, before;
	pthread_t thread;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&thread, NULL, body, argument);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error == 0)
		pthread_detach(thread);
	return -error;
}
