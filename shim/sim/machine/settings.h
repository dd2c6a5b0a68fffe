/* What the environment says about the simulated machine; read once.
 *
 * AFFINODE_SIM_DIR        folder of the machine's shared file; one folder is one machine
 * AFFINODE_SIM_MEMORY     bytes per GPU, with KiB, MiB or GiB; 4GiB
 * AFFINODE_SIM_GPUS       number of GPUs, 1 to 8; 1
 * AFFINODE_SIM_SERIAL     a number: a machine made with another has other GPUs of the same kind; 0
 * AFFINODE_SIM_CONTEXT    bytes that a context costs; 64MiB
 * AFFINODE_SIM_INTEGRATED 1: the GPUs' memory is said to be the host's; 0
 * AFFINODE_SIM_COPY_RATE  bytes a second between host and GPU, each way, all processes together; no limit
 * AFFINODE_SIM_FAULTS, AFFINODE_SIM_FAULT_BOARD  see faults.h
 * AFFINODE_SIM_NVML_HOLD  a file: while it is there NVML's answer about memory waits (nvml.c)
 * AFFINODE_SIM_NVML_FAILS a file: while it is there NVML says "Unknown Error" of each GPU (nvml.c)  */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sim_settings {
	uint64_t memory_bytes;
	uint64_t context_bytes;
	uint64_t copy_rate; /* bytes a second; 0: no limit */
	unsigned gpus;
	unsigned serial;
	bool is_integrated; /* so the driver says; the memory is simulated as ever */
};

const struct sim_settings *settings(void);
/* "1536MiB" → bytes; what cannot be read is the default, for a wrong variable must not break a user's kernel.  */
uint64_t settings_bytes(const char *text, uint64_t otherwise);
/* The folder of the shared file, made if it is missing (0700); 0 or a negative errno.  */
int settings_folder(char *folder, size_t size);
