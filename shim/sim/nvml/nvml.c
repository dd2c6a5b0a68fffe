/* The simulated NVML: the machine's GPUs and their memory. The processes that use them are in nvml_processes.c.
 * What a simulation cannot measure (temperature, power, clocks, …) is NVML_ERROR_NOT_SUPPORTED, never an invented
 * number.  */
#include "nvml/nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "machine/machine.h"

#define DRIVER_VERSION "580.0.simulated"
#define LOOK_NS 1000000 /* whether the process is still checkpointed */

/* A handle is the address of its entry here.  */
static struct nvmlDevice_st {
	char place;
} devices[SIM_MAX_GPUS];
static unsigned users;

static bool is_checkpointed(void)
{
	int32_t pid = (int32_t)getpid();

	for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++) {
		const struct sim_process *process = &machine()->processes[i];

		if (__atomic_load_n(&process->pid, __ATOMIC_ACQUIRE) == pid &&
		    __atomic_load_n(&process->checkpoint.state, __ATOMIC_ACQUIRE) == CHECKPOINTED &&
		    process_start_time(pid) == process->start_time)
			return true;
	}
	return false;
}

/* As on an H200 with driver 580.159.04: in a process that was checkpointed no call of NVML comes back.  */
static void wait_while_checkpointed(void)
{
	struct timespec pause = {0, LOOK_NS};

	while (is_checkpointed())
		nanosleep(&pause, NULL);
}

NVML_API nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	(void)flags;
	if (machine_attach())
		return NVML_ERROR_DRIVER_NOT_LOADED;
	wait_while_checkpointed();
	__atomic_add_fetch(&users, 1, __ATOMIC_ACQ_REL);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

NVML_API nvmlReturn_t nvmlShutdown(void)
{
	unsigned now = __atomic_load_n(&users, __ATOMIC_ACQUIRE);

	do {
		if (!now)
			return NVML_ERROR_UNINITIALIZED;
	} while (!__atomic_compare_exchange_n(&users, &now, now - 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
	return NVML_SUCCESS;
}

static nvmlReturn_t initialised(void)
{
	if (__atomic_load_n(&users, __ATOMIC_ACQUIRE))
		wait_while_checkpointed();
	return __atomic_load_n(&users, __ATOMIC_ACQUIRE) ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

/* While a file named by AFFINODE_SIM_NVML_FAILS is there, no GPU answers.  */
static bool is_failing(void)
{
	const char *path = getenv("AFFINODE_SIM_NVML_FAILS");

	return path && access(path, F_OK) == 0;
}

nvmlReturn_t nvml_gpu(nvmlDevice_t device, unsigned *gpu)
{
	if (initialised() != NVML_SUCCESS)
		return NVML_ERROR_UNINITIALIZED;
	if (is_failing())
		return NVML_ERROR_UNKNOWN;
	if (device < devices || device >= devices + machine()->gpu_count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*gpu = (unsigned)(device - devices);
	return NVML_SUCCESS;
}

static nvmlReturn_t put_text(char *out, unsigned size, const char *text)
{
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(text) >= size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(out, text);
	return NVML_SUCCESS;
}

NVML_API const char *nvmlErrorString(nvmlReturn_t result)
{
	switch (result) {
	case NVML_SUCCESS:
		return "Success";
	case NVML_ERROR_UNINITIALIZED:
		return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT:
		return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED:
		return "Not Supported";
	case NVML_ERROR_NOT_FOUND:
		return "Not Found";
	case NVML_ERROR_INSUFFICIENT_SIZE:
		return "Insufficient Size";
	case NVML_ERROR_DRIVER_NOT_LOADED:
		return "Driver Not Loaded";
	case NVML_ERROR_FUNCTION_NOT_FOUND:
		return "Function Not Found";
	default:
		return "Unknown Error";
	}
}

NVML_API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int size)
{
	return initialised() ? NVML_ERROR_UNINITIALIZED : put_text(version, size, DRIVER_VERSION);
}

NVML_API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	if (initialised() != NVML_SUCCESS)
		return NVML_ERROR_UNINITIALIZED;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = machine()->gpu_count;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	if (initialised() != NVML_SUCCESS)
		return NVML_ERROR_UNINITIALIZED;
	if (!device || index >= machine()->gpu_count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = &devices[index];
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	char text[41];

	if (initialised() != NVML_SUCCESS)
		return NVML_ERROR_UNINITIALIZED;
	if (!uuid || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned gpu = 0; gpu < machine()->gpu_count; gpu++) {
		machine_uuid_text(gpu, text);
		if (!strcasecmp(uuid, text)) {
			*device = &devices[gpu];
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int size)
{
	unsigned gpu;
	nvmlReturn_t result = nvml_gpu(device, &gpu);

	return result == NVML_SUCCESS ? put_text(name, size, SIM_DEVICE_NAME) : result;
}

NVML_API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int size)
{
	unsigned gpu;
	char text[41];
	nvmlReturn_t result = nvml_gpu(device, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	machine_uuid_text(gpu, text);
	return put_text(uuid, size, text);
}

static nvmlReturn_t get_number(nvmlDevice_t device, unsigned int *number)
{
	return number ? nvml_gpu(device, number) : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	return get_number(device, index);
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
	unsigned gpu;
	nvmlReturn_t result = nvml_gpu(device, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (!info)
		return NVML_ERROR_INVALID_ARGUMENT;
	memset(info, 0, sizeof(*info));
	info->bus = gpu + 1;
	snprintf(info->busIdLegacy, sizeof(info->busIdLegacy), "0000:%02X:00.0", (gpu + 1) & 0xff);
	snprintf(info->busId, sizeof(info->busId), "00000000:%02X:00.0", (gpu + 1) & 0xff);
	return NVML_SUCCESS;
}

/* While a file named by AFFINODE_SIM_NVML_HOLD is there, an answer that was found is not given: ".held" is put
 * behind the file's name, and that file's removal ends it.  */
static void hold_answer(void)
{
	const char *path = getenv("AFFINODE_SIM_NVML_HOLD");
	char held[256];

	if (!path || snprintf(held, sizeof(held), "%s.held", path) >= (int)sizeof(held) || rename(path, held) != 0)
		return;
	while (access(held, F_OK) == 0)
		usleep(1000);
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	unsigned gpu;
	nvmlReturn_t result = nvml_gpu(device, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (!memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	memory->used = machine_used(gpu);
	memory->total = machine()->gpus[gpu].total_bytes;
	memory->free = memory->used < memory->total ? memory->total - memory->used : 0;
	hold_answer();
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int *mode)
{
	nvmlReturn_t result = get_number(device, mode);

	if (result == NVML_SUCCESS)
		*mode = 0; /* any number of contexts */
	return result;
}

/* Known, and without an answer here.  */
#define NOT_SUPPORTED(name)                                                     \
	NVML_API nvmlReturn_t name(nvmlDevice_t device, ...);                   \
	NVML_API nvmlReturn_t name(nvmlDevice_t device, ...)                    \
	{                                                                       \
		unsigned gpu;                                                   \
		nvmlReturn_t result = nvml_gpu(device, &gpu);                   \
                                                                                \
		return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result; \
	}

NOT_SUPPORTED(nvmlDeviceGetMigMode)
NOT_SUPPORTED(nvmlDeviceGetMigDeviceHandleByIndex)
NOT_SUPPORTED(nvmlDeviceGetMaxMigDeviceCount)
NOT_SUPPORTED(nvmlDeviceGetTemperature)
NOT_SUPPORTED(nvmlDeviceGetPowerUsage)
