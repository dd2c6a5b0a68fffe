/* The gate, the four operations, and the thread that carries them out in the process they are about.  */
#include "machine/checkpoint.h"

#include <pthread.h>
#include <string.h>

#include "base/own_thread.h"
#include "context/context.h"
#include "driver/api.h"
#include "driver/device.h"
#include "machine/activity.h"
#include "machine/futex.h"
#include "memory/memory.h"
#include "stream/stream.h"

#define LOOK_MS 1

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int serving_pid;
static struct sim_process saved; /* as it was at this process's checkpoint */

bool checkpoint_closed(void)
{
	struct sim_process *self = machine_self();

	return self && __atomic_load_n(&self->checkpoint.closed, __ATOMIC_SEQ_CST);
}

void checkpoint_wait_open(void)
{
	struct sim_process *self = machine_self();

	while (__atomic_load_n(&self->checkpoint.closed, __ATOMIC_SEQ_CST))
		futex_wait(&self->checkpoint.closed, 1, 0);
}

static void set_closed(struct sim_process *process, uint32_t closed)
{
	__atomic_store_n(&process->checkpoint.closed, closed, __ATOMIC_SEQ_CST);
	if (!closed)
		futex_wake(&process->checkpoint.closed);
}

/* No call of the process is under way and no stream has work. A process without contexts has neither.  */
static bool quiet(struct sim_process *process)
{
	return process != machine_self() || (!api_calls_in_flight() && streams_all_idle());
}

static CUresult take_lock(struct sim_process *process, unsigned timeout_ms)
{
	uint64_t deadline = monotonic_ns() + timeout_ms * 1000000ull;
	uint32_t never = 0;

	if (process->checkpoint.state != CU_PROCESS_STATE_RUNNING)
		return CUDA_ERROR_ILLEGAL_STATE;
	set_closed(process, 1);
	while (!quiet(process)) {
		if (timeout_ms && monotonic_ns() >= deadline) {
			set_closed(process, 0);
			return CUDA_ERROR_NOT_READY;
		}
		futex_wait(&never, 0, LOOK_MS);
	}
	process->checkpoint.state = CU_PROCESS_STATE_LOCKED;
	return CUDA_SUCCESS;
}

static CUresult save(struct sim_process *process)
{
	struct sim_checkpoint *checkpoint = &process->checkpoint;

	if (checkpoint->state != CU_PROCESS_STATE_LOCKED)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (process == machine_self() && managed_exists())
		return CUDA_ERROR_NOT_SUPPORTED; /* still locked; Unlock brings it back unharmed */
	for (unsigned gpu = 0; gpu < SIM_MAX_GPUS; gpu++)
		if (process->used_bytes[gpu])
			activity_throttle(gpu, SIM_TO_HOST, process->used_bytes[gpu]);
	machine_lock();
	for (unsigned gpu = 0; gpu < SIM_MAX_GPUS; gpu++) {
		checkpoint->parked_bytes[gpu] = process->used_bytes[gpu];
		process->used_bytes[gpu] = 0;
		memset(checkpoint->left[gpu], 0, sizeof(checkpoint->left[gpu]));
		if (gpu < machine()->gpu_count)
			memcpy(checkpoint->left[gpu], machine()->gpus[gpu].uuid, sizeof(checkpoint->left[gpu]));
	}
	checkpoint->state = CU_PROCESS_STATE_CHECKPOINTED;
	if (process == machine_self())
		saved = *process;
	machine_unlock();
	return CUDA_SUCCESS;
}

static void move_context(CUcontext context, void *destination)
{
	context->gpu = ((const uint8_t *)destination)[context->gpu];
}

/* The process's devices are other GPUs from now on. Its calls are held, so none looks.  */
static void move_to(struct sim_process *process, const uint8_t destination[SIM_MAX_GPUS])
{
	uint32_t contexts[SIM_MAX_GPUS];

	memcpy(contexts, process->contexts, sizeof(contexts));
	for (unsigned gpu = 0; gpu < SIM_MAX_GPUS; gpu++)
		process->contexts[destination[gpu]] = contexts[gpu];
	if (process != machine_self())
		return; /* it has no contexts, and its devices are its own to know */
	contexts_each(move_context, (void *)destination);
	devices_move(destination);
}

/* On a full GPU the process is lost. The real driver leaked memory until the process was killed; here it keeps what was
 * free when it failed.  */
static CUresult restore(struct sim_process *process)
{
	struct sim_checkpoint *checkpoint = &process->checkpoint;
	const uint8_t *destination = checkpoint->destination;
	bool fits = true;

	if (checkpoint->state == CU_PROCESS_STATE_FAILED)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (checkpoint->state != CU_PROCESS_STATE_CHECKPOINTED)
		return CUDA_ERROR_ILLEGAL_STATE;
	machine_lock();
	machine_reap();
	for (unsigned gpu = 0; gpu < SIM_MAX_GPUS; gpu++) {
		uint64_t wanted = checkpoint->parked_bytes[gpu], room = machine_free_locked(destination[gpu]);

		process->used_bytes[destination[gpu]] = wanted < room ? wanted : room;
		fits = fits && wanted <= room;
	}
	checkpoint->state = fits ? CU_PROCESS_STATE_LOCKED : CU_PROCESS_STATE_FAILED;
	machine_unlock();
	if (!fits)
		return CUDA_ERROR_OUT_OF_MEMORY;
	move_to(process, destination);
	for (unsigned gpu = 0; gpu < SIM_MAX_GPUS; gpu++)
		if (process->used_bytes[gpu])
			activity_throttle(gpu, SIM_TO_DEVICE, process->used_bytes[gpu]);
	return CUDA_SUCCESS;
}

static CUresult unlock(struct sim_process *process)
{
	if (process->checkpoint.state != CU_PROCESS_STATE_LOCKED)
		return CUDA_ERROR_ILLEGAL_STATE;
	process->checkpoint.state = CU_PROCESS_STATE_RUNNING;
	set_closed(process, 0);
	return CUDA_SUCCESS;
}

struct sim_process *checkpoint_own_record(void)
{
	struct sim_process *found;

	machine_lock(); /* throughout: two threads that look at once would take a record each */
	found = machine_find(getpid());
	if (!found && saved.pid == getpid()) {
		saved.checkpoint.service_tid = 0; /* the thread's record is another process's by now, perhaps */
		saved.checkpoint.caller = 0;
		saved.checkpoint.answered = saved.checkpoint.request;
		found = machine_rejoin(&saved);
	}
	machine_unlock();
	return found;
}

CUresult checkpoint_perform(struct sim_process *process, enum checkpoint_operation operation, unsigned timeout_ms)
{
	switch (operation) {
	case CHECKPOINT_LOCK:
		return take_lock(process, timeout_ms);
	case CHECKPOINT_SAVE:
		return save(process);
	case CHECKPOINT_RESTORE:
		return restore(process);
	case CHECKPOINT_UNLOCK:
		return unlock(process);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

/* The process that asked may die meanwhile: the operation is finished all the same.  */
static void *serve(void *argument)
{
	struct sim_process *self = argument;
	struct sim_checkpoint *checkpoint = &self->checkpoint;
	uint32_t done = checkpoint->answered;

	__atomic_store_n(&checkpoint->service_tid, (int32_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
	futex_wake((uint32_t *)&checkpoint->service_tid);
	for (;;) {
		uint32_t request = __atomic_load_n(&checkpoint->request, __ATOMIC_ACQUIRE);

		if (machine_self() != self) /* woken from an image, with another record */
			return NULL;
		if (request == done) {
			futex_wait(&checkpoint->request, request, 0);
			continue;
		}
		checkpoint->result = checkpoint_perform(self, checkpoint->operation, checkpoint->timeout_ms);
		done = request;
		__atomic_store_n(&checkpoint->answered, request, __ATOMIC_RELEASE);
		futex_wake(&checkpoint->answered);
	}
	return NULL;
}

CUresult checkpoint_serve(void)
{
	struct sim_process *self = machine_self();
	int error = 0;

	pthread_mutex_lock(&lock);
	if (serving_pid != getpid()) {
		error = thread_begin(serve, self);
		if (!error) {
			serving_pid = getpid();
			while (!__atomic_load_n(&self->checkpoint.service_tid, __ATOMIC_ACQUIRE))
				futex_wait((uint32_t *)&self->checkpoint.service_tid, 0, 0);
		}
	}
	pthread_mutex_unlock(&lock);
	return error ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}
