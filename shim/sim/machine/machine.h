/* The simulated machine: GPUs with a capacity that all processes share, in one mapped file per AFFINODE_SIM_DIR.
 *
 * What a process holds is written in its own record, keyed by pid and start time, so that the memory of a killed process
 * is free the moment a process asks. All sizes are bytes; all times CLOCK_MONOTONIC nanoseconds.  */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define SIM_DEVICE_NAME "Simulated GPU"
#define SIM_MAX_GPUS 8
#define SIM_MAX_PROCESSES 256
#define SIM_GRANULARITY (2ull << 20)
#define SIM_SLICES 16u
#define SIM_SLICE_NS 100000000ull

enum sim_activity { SIM_KERNELS, SIM_COPIES, SIM_ACTIVITIES };
enum sim_direction { SIM_TO_DEVICE, SIM_TO_HOST, SIM_DIRECTIONS };

/* How long something ran in each of the last slices of time, and since when it runs now.  */
struct sim_activity_log {
	uint64_t slice[SIM_SLICES]; /* number of the slice the entry is about */
	uint64_t busy_ns[SIM_SLICES];
	uint64_t since_ns; /* 0: not running */
	uint32_t running;
	uint32_t reserved;
};

/* A request of cuCheckpointProcess* to the process of this record, served by its checkpoint thread (checkpoint.c).  */
struct sim_checkpoint {
	uint32_t state;    /* CU_PROCESS_STATE_* */
	uint32_t request;  /* rises with each request; the service thread sleeps on it */
	uint32_t answered; /* the last request that was answered; callers sleep on it */
	uint32_t operation;
	uint32_t timeout_ms;
	int32_t result;
	int32_t service_tid; /* 0: no service yet */
	uint32_t closed;     /* calls of the process wait while this is set; they sleep on it */
	int32_t caller;      /* pid that holds the request slot; 0: free */
	uint32_t reserved;
	uint64_t caller_start;
	uint8_t destination[SIM_MAX_GPUS]; /* of a restore: by GPU it was on, the GPU it goes to */
	uint64_t parked_bytes[SIM_MAX_GPUS]; /* what it held when it was checkpointed, and will need again */
	uint8_t left[SIM_MAX_GPUS][16];      /* the UUIDs of the machine's GPUs then; zeros: no GPU */
};

struct sim_process {
	int32_t pid;        /* 0: free */
	uint32_t namespace; /* in which that is its number */
	uint64_t start_time;
	uint64_t used_bytes[SIM_MAX_GPUS];
	uint32_t contexts[SIM_MAX_GPUS];
	struct sim_activity_log log[SIM_MAX_GPUS][SIM_ACTIVITIES];
	struct sim_checkpoint checkpoint;
};

struct sim_gpu {
	uint64_t total_bytes;
	uint64_t foreign_bytes; /* used by a process that is not simulated: faults.h */
	uint64_t link_free_ns[SIM_DIRECTIONS]; /* when the throttled link has carried all it was given */
	uint8_t uuid[16];
};

struct sim_machine {
	uint64_t magic; /* last thing written when the file is made */
	uint32_t size;
	uint32_t gpu_count;
	pthread_mutex_t lock;
	uint64_t context_bytes; /* what one context costs */
	struct sim_gpu gpus[SIM_MAX_GPUS];
	struct sim_process processes[SIM_MAX_PROCESSES];
};

/* Map the machine, making it if it does not exist; 0 or a negative errno. Idempotent.  */
int machine_attach(void);
/* The mapped machine; only after machine_attach() succeeded.  */
struct sim_machine *machine(void);
/* Forget the mapping and the process's record without touching them: for the child after fork.  */
void machine_forget(void);

void machine_lock(void);
void machine_unlock(void);
/* Free the records of dead processes; the lock is held.  */
void machine_reap(void);

/* This process's record, made at the first call; NULL when all are taken.  */
struct sim_process *machine_join(void);
/* Take a record anew, with what `before` says: for a process that an image was made of since. The lock
 * is held. NULL when all are taken.  */
struct sim_process *machine_rejoin(const struct sim_process *before);
/* The record if there is one.  */
struct sim_process *machine_self(void);
/* Give the record back, at exit.  */
void machine_leave(void);
/* The live record of `pid`, or NULL; the lock is held.  */
struct sim_process *machine_find(int32_t pid);

/* Take bytes of a GPU for this process: false when there is no room, or no record.  */
bool machine_charge(unsigned gpu, uint64_t bytes);
void machine_refund(unsigned gpu, uint64_t bytes);
/* Bytes in use by all live processes; the lock is taken.  */
uint64_t machine_used(unsigned gpu);
/* What is free beside what all records, alive or not, have in use; the lock is held.  */
uint64_t machine_free_locked(unsigned gpu);
/* A process that is not simulated takes that much more of every GPU, or all that is free; 0: it ends.  */
void machine_take_foreign(uint64_t bytes);

/* A GPU's UUID as it is written: "GPU-53494d…".  */
void machine_uuid_text(unsigned gpu, char text[41]);

/* Start time of a live process in clock ticks since boot (proc(5), field 22); 0 when it is dead or a zombie.  */
uint64_t process_start_time(int32_t pid);

uint64_t monotonic_ns(void);
