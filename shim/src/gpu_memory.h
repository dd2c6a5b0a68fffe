/* How much of a GPU's memory is free and how much of it is ours, as NVML says while the driver holds every call of this
 * process. That includes those of NVML: on an H200 with driver 580.159.04 a process that was checkpointed never came back
 * from nvmlDeviceGetHandleByUUID. So a small program beside the shim is asked, affinode-gpu-memory.  */
#ifndef AFFINODE_GPU_MEMORY_H
#define AFFINODE_GPU_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "contexts.h"

struct gpu_memory {
	uint64_t total_bytes, free_bytes, used_bytes;
	uint64_t own_bytes; /* this process's, 0: not told apart (in containers, its pid is another) */
	unsigned processes; /* with a context on the GPU; 0: not known */
	bool divided;       /* MIG */
};

/* Find the program, note the environment it gets, and look once. Calls the dynamic linker and asks for memory: on the
 * application's thread. NULL, or why there will be no looks.  */
const char *gpu_memory_start(const struct device *device);

/* Look now, `ns` at most. NULL, or why there is no answer.  */
const char *gpu_memory_look(const struct device *device, uint64_t ns, struct gpu_memory *memory);

#endif
