/* What checkpoint.c, leave_gpu.c and return_to_gpu.c have in common; the mover's, but for checkpoint_start.  */
#pragma once

#include "base/monotonic_futex.h"
#include "gpu/contexts.h"
#include "protocol.h"
#include "state/depth.h"

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

/* The driver's checkpoint of this process. Its Restore on a GPU without room loses the process, so it is called only with the GPU's
 * lock held and the room seen to be free, and where either cannot be had the process stays parked. What each does: struct depth_moves
 * (mover/mover.h).  */
enum reason checkpoint_objection(void);
enum affinode_status checkpoint_out(bool ends, char *why, size_t size);
enum affinode_status checkpoint_in(const uint8_t *to, char *why, size_t size);

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
