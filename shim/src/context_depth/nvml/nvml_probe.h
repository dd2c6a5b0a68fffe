/* How much of a GPU's memory is free and how much of it is ours, as NVML says while the driver holds every call of this
 * process. That includes those of NVML: on an H200 with driver 580.159.04 a process that was checkpointed never came back
 * from nvmlDeviceGetHandleByUUID. So a small program beside the shim is asked, affinode-gpu-memory.  */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/reasons.h"
#include "gpu/devices.h"

#define GPUS_LISTED 64

struct gpu_memory {
	uint64_t total_bytes, free_bytes, used_bytes;
	uint64_t own_bytes; /* this process's, 0: not told apart (in containers, its pid is another) */
	unsigned processes; /* with a context on the GPU; 0: not known */
	bool divided;       /* MIG */
};

/* One of the machine's GPUs, whether this process sees it or not.  */
struct gpu_listed {
	uint8_t uuid[16];
	struct gpu_memory memory; /* total_bytes 0: not known */
	bool shared;              /* any number of processes may use it at once */
	char pci_id[24];          /* as sysfs names its place on the bus */
	char name[96];            /* the kind of chip */
};

/* Find the program, note the environment it gets, and look once at a GPU, by its UUID. Calls the dynamic linker and asks for
 * memory: on the application's thread. NO_REASON, or why there will be no looks.  */
enum reason gpu_memory_start(const uint8_t gpu[16]);

/* Look now, `ns` at most. NO_REASON, or why there is no answer.  */
enum reason gpu_memory_ask(const uint8_t gpu[16], uint64_t ns, struct gpu_memory *memory);

/* All that NVML knows of; by one thread at a time.  */
enum reason gpu_memory_list(uint64_t ns, struct gpu_listed gpus[GPUS_LISTED], unsigned *count);
