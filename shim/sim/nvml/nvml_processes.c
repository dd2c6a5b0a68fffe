/* The processes that use a simulated GPU, how much of it, and how busily.  */
#include "machine/activity.h"
#include "machine/machine.h"
#include "nvml/nvml.h"

struct user {
	unsigned pid;
	uint64_t bytes;
	unsigned kernels_percent, copies_percent;
};

/* The live processes with a context on the GPU; a process that was checkpointed away has none.  */
static unsigned users_of(unsigned gpu, struct user users[SIM_MAX_PROCESSES])
{
	unsigned count = 0;

	machine_lock();
	machine_reap();
	for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++) {
		const struct sim_process *process = &machine()->processes[i];

		if (!process->pid || process->checkpoint.state == CHECKPOINTED ||
		    (!process->contexts[gpu] && !process->used_bytes[gpu]))
			continue;
		users[count].pid = (unsigned)process->pid;
		users[count].bytes = process->used_bytes[gpu];
		users[count].kernels_percent = activity_percent(process, gpu, SIM_KERNELS);
		users[count].copies_percent = activity_percent(process, gpu, SIM_COPIES);
		count++;
	}
	machine_unlock();
	return count;
}

static nvmlReturn_t list(nvmlDevice_t device, unsigned int *room, struct user *users, unsigned *count)
{
	unsigned gpu, given;
	nvmlReturn_t result = nvml_gpu(device, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (!room)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = users_of(gpu, users);
	given = *room;
	*room = *count;
	return *count > given ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *room,
							      nvmlProcessInfo_t *out)
{
	struct user users[SIM_MAX_PROCESSES];
	unsigned count;
	nvmlReturn_t result = list(device, room, users, &count);

	for (unsigned i = 0; result == NVML_SUCCESS && i < count; i++)
		out[i] = (nvmlProcessInfo_t){users[i].pid, users[i].bytes, ~0u, ~0u};
	return result;
}

/* No process draws on a simulated GPU.  */
#define NO_PROCESSES(name)                                                                       \
	NVML_API nvmlReturn_t name(nvmlDevice_t device, unsigned int *room, void *out);    \
	NVML_API nvmlReturn_t name(nvmlDevice_t device, unsigned int *room, void *out)     \
	{                                                                                  \
		unsigned gpu;                                                              \
		nvmlReturn_t result = nvml_gpu(device, &gpu);                              \
                                                                                           \
		(void)out;                                                                 \
		if (result == NVML_SUCCESS && !room)                                       \
			result = NVML_ERROR_INVALID_ARGUMENT;                              \
		if (result == NVML_SUCCESS)                                                \
			*room = 0;                                                         \
		return result;                                                             \
	}

NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)

NVML_API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
	struct user users[SIM_MAX_PROCESSES];
	unsigned gpu, count, kernels = 0, copies = 0;
	nvmlReturn_t result = nvml_gpu(device, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (!utilization)
		return NVML_ERROR_INVALID_ARGUMENT;
	count = users_of(gpu, users);
	for (unsigned i = 0; i < count; i++) { /* processes take turns, so their shares add up */
		kernels += users[i].kernels_percent;
		copies += users[i].copies_percent;
	}
	utilization->gpu = kernels > 100 ? 100 : kernels;
	utilization->memory = copies > 100 ? 100 : copies;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out,
						      unsigned int *room, unsigned long long since_us)
{
	struct user users[SIM_MAX_PROCESSES];
	unsigned long long now_us = monotonic_ns() / 1000;
	unsigned count;
	nvmlReturn_t result;

	(void)since_us; /* one sample a process, of the last second */
	result = list(device, room, users, &count);
	if (result == NVML_SUCCESS && count && !out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (result == NVML_SUCCESS && !count)
		return NVML_ERROR_NOT_FOUND;
	for (unsigned i = 0; result == NVML_SUCCESS && i < count; i++)
		out[i] = (nvmlProcessUtilizationSample_t){
			users[i].pid, now_us, users[i].kernels_percent, users[i].copies_percent, 0, 0};
	return result;
}
