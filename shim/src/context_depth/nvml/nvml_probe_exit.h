/* The exit statuses of affinode-gpu-memory, for it and the shim.  */
#pragma once

enum gpu_memory_exit {
	GPU_MEMORY_SAID = 0,
	GPU_MEMORY_USAGE = 2,
	GPU_MEMORY_NO_LIBRARY = 3,
	GPU_MEMORY_NO_NVML = 4,
	GPU_MEMORY_NO_GPU = 5,
	GPU_MEMORY_NO_FIGURES = 6,
};
