/* cuInit, the beginning and end of every call, and what fork and exit do to them.  */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver/api.h"
#include "driver/device.h"
#include "machine/checkpoint.h"
#include "machine/faults.h"
#include "machine/machine.h"
#include "memory/memfile.h"

enum { NOT_INITIALISED, INITIALISED, FORKED, DEINITIALISED };

static int phase;
static unsigned in_flight;
static __thread bool in_callback;
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;

/* The GPU does not follow a process through fork: the child of a process that had called cuInit can do nothing.  */
static void after_fork_in_child(void)
{
	phase = FORKED;
	machine_forget();
	memfile_forget();
}

SIM_API CUresult cuInit(unsigned int flags)
{
	CUresult result = faults_next("cuInit");

	if (result != CUDA_SUCCESS)
		return result;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (phase == FORKED) /* before the lock, which a thread that is not here may hold */
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&init_lock);
	if (phase == DEINITIALISED) {
		result = CUDA_ERROR_DEINITIALIZED;
	} else if (phase == NOT_INITIALISED) {
		if (machine_attach())
			result = CUDA_ERROR_OPERATING_SYSTEM;
		else
			result = device_discover();
		if (result == CUDA_SUCCESS && !machine_join())
			result = CUDA_ERROR_OPERATING_SYSTEM; /* the machine has no place for another process */
		if (result == CUDA_SUCCESS) {
			pthread_atfork(NULL, NULL, after_fork_in_child);
			phase = INITIALISED;
		}
	}
	pthread_mutex_unlock(&init_lock);
	return result;
}

static CUresult refusal(void)
{
	switch (__atomic_load_n(&phase, __ATOMIC_ACQUIRE)) {
	case INITIALISED:
		return in_callback ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
	case DEINITIALISED:
		return CUDA_ERROR_DEINITIALIZED;
	default:
		return CUDA_ERROR_NOT_INITIALIZED;
	}
}

CUresult api_allowed(const char *name)
{
	CUresult result = refusal();

	return result == CUDA_SUCCESS ? faults_next(name) : result;
}

CUresult api_enter(struct api_call *call, const char *name)
{
	CUresult result = refusal();

	call->entered = false;
	if (result == CUDA_ERROR_NOT_PERMITTED && !strcmp(name, "cuStreamQuery"))
		result = CUDA_SUCCESS; /* alone of what was tried in a callback, driver 580 answers it */
	if (result != CUDA_SUCCESS)
		return result;
	result = faults_next(name);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &call->cancel_state);
	call->entered = true;
	__atomic_add_fetch(&in_flight, 1, __ATOMIC_SEQ_CST);
	while (checkpoint_closed()) {
		__atomic_sub_fetch(&in_flight, 1, __ATOMIC_SEQ_CST);
		checkpoint_wait_open();
		__atomic_add_fetch(&in_flight, 1, __ATOMIC_SEQ_CST);
	}
	return CUDA_SUCCESS;
}

void api_leave(struct api_call *call)
{
	if (!call->entered)
		return;
	__atomic_sub_fetch(&in_flight, 1, __ATOMIC_SEQ_CST);
	pthread_setcancelstate(call->cancel_state, NULL);
}

unsigned api_calls_in_flight(void)
{
	return __atomic_load_n(&in_flight, __ATOMIC_SEQ_CST);
}

void api_in_callback(bool inside)
{
	in_callback = inside;
}

/* At exit the memory is given back at once, though the process may take its time to end. After this every call says
 * CUDA_ERROR_DEINITIALIZED.  */
__attribute__((destructor)) static void at_exit(void)
{
	if (__atomic_load_n(&phase, __ATOMIC_ACQUIRE) != INITIALISED)
		return;
	__atomic_store_n(&phase, DEINITIALISED, __ATOMIC_RELEASE);
	machine_leave();
}
