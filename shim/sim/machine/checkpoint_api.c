/* cuCheckpointProcess*: on one's own process or another of the same user.  */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "driver/api.h"
#include "machine/checkpoint.h"
#include "machine/faults.h"
#include "machine/futex.h"

#define LOOK_MS 50

/* No such process, or another user's: CUDA_ERROR_OPERATING_SYSTEM; one without CUDA: CUDA_ERROR_NOT_INITIALIZED.  */
static CUresult find(int pid, struct sim_process **process)
{
	if (pid <= 0 || kill(pid, 0) < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (pid == getpid()) {
		*process = checkpoint_own_record();
	} else {
		machine_lock();
		*process = machine_find(pid);
		machine_unlock();
	}
	return *process ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

static bool alive(int pid, uint64_t start_time)
{
	return process_start_time(pid) == start_time && start_time;
}

/* One caller at a time; a dead caller's place is taken over.  */
static void take_turn(struct sim_checkpoint *checkpoint)
{
	for (;;) {
		int32_t holder = 0;

		if (__atomic_compare_exchange_n(&checkpoint->caller, &holder, (int32_t)getpid(), false,
						__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			break;
		if (holder != getpid() && !alive(holder, checkpoint->caller_start) &&
		    __atomic_compare_exchange_n(&checkpoint->caller, &holder, (int32_t)getpid(), false,
						__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			break;
		futex_wait((uint32_t *)&checkpoint->caller, (uint32_t)holder, LOOK_MS);
	}
	checkpoint->caller_start = process_start_time(getpid());
}

static void end_turn(struct sim_checkpoint *checkpoint)
{
	__atomic_store_n(&checkpoint->caller, 0, __ATOMIC_RELEASE);
	futex_wake((uint32_t *)&checkpoint->caller);
}

/* `destination`: of a restore, else NULL.  */
static CUresult ask(struct sim_process *process, enum checkpoint_operation operation, unsigned timeout_ms,
		    const uint8_t *destination)
{
	struct sim_checkpoint *checkpoint = &process->checkpoint;
	int32_t pid = process->pid;
	uint64_t start_time = process->start_time;
	uint32_t number, answered;

	if (!checkpoint->service_tid) {
		if (destination)
			memcpy(checkpoint->destination, destination, sizeof(checkpoint->destination));
		return checkpoint_perform(process, operation, timeout_ms);
	}
	/* a request that a dead caller left is finished first */
	while ((answered = __atomic_load_n(&checkpoint->answered, __ATOMIC_ACQUIRE)) != checkpoint->request) {
		if (!alive(pid, start_time))
			return CUDA_ERROR_OPERATING_SYSTEM;
		futex_wait(&checkpoint->answered, answered, LOOK_MS);
	}
	checkpoint->operation = operation;
	checkpoint->timeout_ms = timeout_ms;
	if (destination)
		memcpy(checkpoint->destination, destination, sizeof(checkpoint->destination));
	number = __atomic_add_fetch(&checkpoint->request, 1, __ATOMIC_ACQ_REL);
	futex_wake(&checkpoint->request);
	while ((answered = __atomic_load_n(&checkpoint->answered, __ATOMIC_ACQUIRE)) != number) {
		if (!alive(pid, start_time))
			return CUDA_ERROR_OPERATING_SYSTEM;
		futex_wait(&checkpoint->answered, answered, LOOK_MS);
	}
	return (CUresult)checkpoint->result;
}

static CUresult request(const char *called, int pid, enum checkpoint_operation operation, unsigned timeout_ms,
			uint8_t *destination)
{
	struct sim_process *process;
	CUresult result = api_allowed(called);

	for (unsigned gpu = 0; destination && faults_stay() && gpu < SIM_MAX_GPUS; gpu++)
		destination[gpu] = (uint8_t)gpu;
	if (result == CUDA_SUCCESS)
		result = find(pid, &process);
	if (result != CUDA_SUCCESS)
		return result;
	take_turn(&process->checkpoint);
	result = ask(process, operation, timeout_ms, destination);
	end_turn(&process->checkpoint);
	return result;
}

SIM_API CUresult cuCheckpointProcessGetState(int pid, int *state)
{
	struct sim_process *process;
	CUresult result = api_allowed("cuCheckpointProcessGetState");

	if (result == CUDA_SUCCESS)
		result = state ? find(pid, &process) : CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		*state = (int)process->checkpoint.state;
	return result;
}

SIM_API CUresult cuCheckpointProcessLock(int pid, const CUcheckpointLockArgs *arguments)
{
	return request("cuCheckpointProcessLock", pid, CHECKPOINT_LOCK, arguments ? arguments->timeoutMs : 0, NULL);
}

SIM_API CUresult cuCheckpointProcessCheckpoint(int pid, const void *arguments)
{
	(void)arguments; /* all reserved */
	return request("cuCheckpointProcessCheckpoint", pid, CHECKPOINT_SAVE, 0, NULL);
}

static bool is_here(const uint8_t uuid[16], unsigned gpu)
{
	return gpu < machine()->gpu_count && !memcmp(uuid, machine()->gpus[gpu].uuid, 16);
}

/* Without pairs each GPU comes back as itself, so it must be here.  */
static CUresult stay(const struct sim_checkpoint *checkpoint)
{
	for (unsigned gpu = 0; gpu < SIM_MAX_GPUS; gpu++)
		if (checkpoint->state == CU_PROCESS_STATE_CHECKPOINTED && checkpoint->parked_bytes[gpu] &&
		    !is_here(checkpoint->left[gpu], gpu))
			return CUDA_ERROR_INVALID_DEVICE;
	return CUDA_SUCCESS;
}

/* Pairs must name every GPU of the machine, seen by the process or not, as a permutation; on another machine they go from the GPUs of the
 * one where the checkpoint was made.  */
static CUresult read_pairs(const struct sim_checkpoint *checkpoint, const CUcheckpointRestoreArgs *arguments,
			   uint8_t destination[SIM_MAX_GPUS])
{
	unsigned from = 0, to = 0, all = (1u << machine()->gpu_count) - 1;

	for (unsigned gpu = 0; gpu < SIM_MAX_GPUS; gpu++)
		destination[gpu] = (uint8_t)gpu;
	if (!arguments || !arguments->gpuPairsCount)
		return stay(checkpoint);
	if (!arguments->gpuPairs || arguments->gpuPairsCount != machine()->gpu_count)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < arguments->gpuPairsCount; i++)
		for (unsigned before = 0; before < machine()->gpu_count; before++)
			for (unsigned after = 0; after < machine()->gpu_count; after++)
				if (!memcmp(arguments->gpuPairs[i].oldUuid.bytes, checkpoint->left[before], 16) &&
				    is_here(arguments->gpuPairs[i].newUuid.bytes, after)) {
					from |= 1u << before;
					to |= 1u << after;
					destination[before] = (uint8_t)after;
				}
	return from == all && to == all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuCheckpointProcessRestore(int pid, const CUcheckpointRestoreArgs *arguments)
{
	struct sim_process *process;
	uint8_t destination[SIM_MAX_GPUS];
	CUresult result = machine() ? find(pid, &process) : CUDA_ERROR_NOT_INITIALIZED;

	if (result == CUDA_SUCCESS)
		result = read_pairs(&process->checkpoint, arguments, destination);
	if (result != CUDA_SUCCESS)
		return result;
	return request("cuCheckpointProcessRestore", pid, CHECKPOINT_RESTORE, 0, destination);
}

SIM_API CUresult cuCheckpointProcessUnlock(int pid, const void *arguments)
{
	(void)arguments;
	return request("cuCheckpointProcessUnlock", pid, CHECKPOINT_UNLOCK, 0, NULL);
}
