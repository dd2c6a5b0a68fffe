/* What checkpoint.c, leave_gpu.c and return_to_gpu.c have in common; the mover's, but for checkpoint_start.  */
#pragma once

#include "base/monotonic_futex.h"
#include "context_depth/checkpoint.h"
#include "gpu/contexts.h"

#define GIB (1ull << 30)
/* Free beyond what the context needs: what others of ours that hold no lock (small allocations, code) may take meanwhile.  */
#define SPARE_BYTES GIB
/* A context takes about 0.6 GiB of an H200.  */
#define CONTEXT_BYTES GIB

/* CUprocessState */
enum { PROCESS_RUNNING = 0, PROCESS_LOCKED = 1, PROCESS_CHECKPOINTED = 2, PROCESS_FAILED = 3 };

struct checkpoint_left {
	struct device *device;  /* that the context was taken off */
	const uint8_t *gpu;     /* which the driver knows it by; the device may be another by now, where the process was woken elsewhere */
	uint64_t context_bytes; /* what it needs to come back */
};
extern struct checkpoint_left checkpoint_left;

/* How long ago the process began, in nanoseconds.  */
uint64_t checkpoint_age_ns(void);

/* PROCESS_RUNNING, …; -1: the driver does not say.  */
int checkpoint_state(void);

/* Lock all of the process's GPUs, or another one alone (its UUID), waiting `ns` at most: 0 or -EBUSY.  */
int checkpoint_lock_gpus(const uint8_t *to, uint64_t ns);

/* The one device and context in use; NULL, or *why not, which is NO_REASON before. While the driver answers.  */
struct device *checkpoint_only_device(enum reason *why);

/* In a child that was forked from a process with CUDA: have none of the driver's devices any more.  */
void devices_let_go(void);
