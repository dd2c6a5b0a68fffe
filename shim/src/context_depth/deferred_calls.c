#include "context_depth/deferred_calls.h"

#include <errno.h>
#include <pthread.h>

#include "base/log.h"
#include "base/per_process.h"
#include "driver/real_driver.h"

#define MAX_CALLS 4096

struct call {
	void *real;
	CUcontext context;
	W arguments[3];
};

static OF_PROCESS pthread_mutex_t calls_lock = PTHREAD_MUTEX_INITIALIZER;
static struct call calls[MAX_CALLS];
static OF_PROCESS unsigned count;
static OF_PROCESS bool accepting; /* the process is off the GPU */

int deferred_add(void *real, CUcontext context, W a0, W a1, W a2)
{
	int error = 0;

	pthread_mutex_lock(&calls_lock);
	if (accepting && count < MAX_CALLS)
		calls[count++] = (struct call){real, context, {a0, a1, a2}};
	else
		error = -EBUSY;
	pthread_mutex_unlock(&calls_lock);
	return error;
}

void deferred_begin(void)
{
	pthread_mutex_lock(&calls_lock);
	accepting = true;
	pthread_mutex_unlock(&calls_lock);
}

void deferred_make(void)
{
	unsigned failed = 0;

	pthread_mutex_lock(&calls_lock);
	for (unsigned i = 0; i < count; i++) {
		const struct call *call = &calls[i];

		driver.cuCtxSetCurrent(call->context);
		failed += ((CUresult(*)(W, W, W))call->real)(call->arguments[0], call->arguments[1],
							     call->arguments[2]) != CUDA_SUCCESS;
	}
	if (count) {
		driver.cuCtxSetCurrent(NULL);
		log_line("%u calls made that were put off, %u failed", count, failed);
	}
	count = 0;
	accepting = false;
	pthread_mutex_unlock(&calls_lock);
}
