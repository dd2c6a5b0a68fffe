/* How much host memory this process may take.  */
#pragma once

#include <stdint.h>

/* Return the smaller of the machine's MemAvailable and what the process's own control groups leave it, in bytes; UINT64_MAX if
 * neither is known.  */
uint64_t host_memory_left(void);

/* Return the machine's MemAvailable in bytes, whatever control groups allow.  */
uint64_t machine_memory_left(void);

/* The bytes that must be left when memory for copies has been taken. Below that, retained copies are given back: the machine is better
 * off with the memory than we are with a parked kernel. The controller keeps a larger reserve; this is the last line, looked at as
 * the memory is taken.  */
#define HOST_MEMORY_RESERVE (256ull << 20)

/* Return how many CPUs this process may run on.  */
unsigned host_cpus(void);

/* Have memory that was not touched yet come from a NUMA node, if that has some; `node` -1 does nothing. A failure is ignored, since
 * the memory is as good anywhere else, only slower.  */
void host_memory_prefer(void *base, uint64_t size, int node);
