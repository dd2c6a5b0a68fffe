/* How much of a GPU's memory is free and how much of it is ours, asked of NVML: it answers also while the driver holds
 * every CUDA call of this process. Loaded only where context depth is asked for.  */
#ifndef AFFINODE_GPU_MEMORY_H
#define AFFINODE_GPU_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "contexts.h"

struct gpu_memory {
	uint64_t total_bytes, free_bytes, used_bytes;
	uint64_t own_bytes; /* this process's, 0: not told apart (in containers, its pid is another) */
	unsigned processes; /* with a context on the GPU; 0: not known */
};

/* Load and start NVML. Calls the dynamic linker: on the application's thread. NULL, or why it cannot be used.  */
const char *gpu_memory_start(void);

/* NULL, or why this GPU can never be asked about: NVML does not know it, or it is divided (MIG).  */
const char *gpu_memory_refusal(const struct device *device);

/* Look now; false: no answer.  */
bool gpu_memory_look(const struct device *device, struct gpu_memory *memory);

#endif
