/* How much host memory this process may take.  */
#pragma once

#include <stdint.h>

/* Return the smaller of the machine's MemAvailable and what the process's own control groups leave it, in bytes; UINT64_MAX if
 * neither is known.  */
uint64_t host_memory_left(void);

/* Return the machine's MemAvailable in bytes, whatever control groups allow.  */
uint64_t machine_memory_left(void);

/* Return the bytes that must be left when memory for copies has been taken. Below that, retained copies are given back.  */
uint64_t host_memory_reserve(void);

/* Return how many CPUs this process may run on.  */
unsigned host_cpus(void);

/* Have memory that was not touched yet come from a NUMA node, if that has some; `node` -1 does nothing. A failure is ignored, since
 * the memory is as good anywhere else, only slower.  */
void host_memory_prefer(void *base, uint64_t size, int node);
