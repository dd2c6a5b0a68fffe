#include "gpu_memory.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libnvidia-ml.so.1"
#define MAX_PROCESSES 256

/* As nvml.h declares them (NVML 11 and later).  */
typedef struct nvmlDevice_st *nvml_device;
struct nvml_memory {
	unsigned long long total, free, used;
};
struct nvml_process {
	unsigned int pid;
	unsigned long long used_bytes;
	unsigned int gpu_instance, compute_instance;
};

static struct {
	int (*init)(void);
	int (*by_uuid)(const char *, nvml_device *);
	int (*memory)(nvml_device, struct nvml_memory *);
	int (*processes)(nvml_device, unsigned int *, struct nvml_process *);
	int (*mig_mode)(nvml_device, unsigned int *, unsigned int *);
} nvml;

static void *find(void *library, const char *name)
{
	return dlsym(library, name);
}

const char *gpu_memory_start(void)
{
	void *library, *found;

	if (nvml.init)
		return NULL;
	library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return "NVML (" LIBRARY ") is not here";
#define FIND(field, name)                             \
	do {                                          \
		found = find(library, name);          \
		memcpy(&nvml.field, &found, sizeof(found)); \
	} while (0)
	FIND(by_uuid, "nvmlDeviceGetHandleByUUID");
	FIND(memory, "nvmlDeviceGetMemoryInfo");
	FIND(processes, "nvmlDeviceGetComputeRunningProcesses_v3");
	FIND(mig_mode, "nvmlDeviceGetMigMode");
	FIND(init, "nvmlInit_v2");
#undef FIND
	if (!nvml.init || !nvml.by_uuid || !nvml.memory || nvml.init() != 0) {
		nvml.init = NULL;
		return "NVML does not work here";
	}
	return NULL;
}

static bool device_of(const struct device *device, nvml_device *handle)
{
	char text[64];
	int n = snprintf(text, sizeof(text), "GPU-");

	for (int i = 0; i < 16; i++)
		n += snprintf(text + n, sizeof(text) - (size_t)n, "%s%02x",
			      i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", device->uuid[i]);
	return nvml.init && nvml.by_uuid(text, handle) == 0;
}

const char *gpu_memory_refusal(const struct device *device)
{
	unsigned int now = 0, pending = 0;
	struct gpu_memory memory;
	nvml_device handle;

	if (!device_of(device, &handle) || !gpu_memory_look(device, &memory))
		return "NVML does not know this GPU's free memory";
	if (nvml.mig_mode && nvml.mig_mode(handle, &now, &pending) == 0 && (now || pending))
		return "the GPU is divided (MIG)";
	return NULL;
}

bool gpu_memory_look(const struct device *device, struct gpu_memory *memory)
{
	struct nvml_process processes[MAX_PROCESSES];
	unsigned int count = MAX_PROCESSES;
	struct nvml_memory bytes;
	nvml_device handle;

	memset(memory, 0, sizeof(*memory));
	if (!device_of(device, &handle) || nvml.memory(handle, &bytes) != 0)
		return false;
	memory->total_bytes = bytes.total;
	memory->free_bytes = bytes.free;
	memory->used_bytes = bytes.used;
	if (!nvml.processes || nvml.processes(handle, &count, processes) != 0)
		return true;
	memory->processes = count;
	for (unsigned int i = 0; i < count && i < MAX_PROCESSES; i++)
		if (processes[i].pid == (unsigned int)getpid() && processes[i].used_bytes != ~0ull)
			memory->own_bytes = processes[i].used_bytes;
	return true;
}
