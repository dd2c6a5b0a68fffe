/* How much host memory may be taken.  */
#pragma once

#include <stdint.h>

/* The smaller of the machine's MemAvailable and what the process's own control groups leave it, in bytes; UINT64_MAX:
 * neither is known.  */
uint64_t host_memory_left(void);

/* The machine's alone.  */
uint64_t machine_memory_left(void);

/* What must be left when memory for copies has been taken; below that, memory that is only kept is given back.  */
uint64_t host_memory_reserve(void);

/* CPUs this process may run on.  */
unsigned host_cpus(void);

/* Prefer a NUMA node for memory not touched yet; -1: none. Only a preference: what fails is ignored.  */
void host_memory_prefer(void *base, uint64_t size, int node);
