/* Taking the context off the GPU.  */
#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/environment.h"
#include "base/log.h"
#include "context_depth/bookkeeping_gate.h"
#include "context_depth/deferred_calls.h"
#include "context_depth/internal.h"
#include "context_depth/migrate.h"
#include "context_depth/nvml/nvml_gate.h"
#include "context_depth/nvml/nvml_probe.h"
#include "context_depth/shadow/shadow.h"
#include "driver/real_driver.h"
#include "gate/gate.h"
#include "gpu/gpu_lock.h"
#include "host/memory_limits.h"
#include "host/slabs.h"
#include "memory/managed_memory.h"
#include "memory/unmovable_bytes.h"
#include "state/status_page.h"

#define DRAIN_NS (100 * MS_NS)
#define LOCK_TIMEOUT_MS 1000u
/* To go away, a caller may be waiting for us.  */
#define LOCK_TO_GO_NS (100 * MS_NS)
/* NVML has to wake a GPU that no process uses any more.  */
#define LOOK_TO_GO_NS (2 * S_NS)
/* The others' belief that no process needs the GPU's lock must have passed (gpu_lock.c).  */
#define YOUNG_NS (3 * S_NS)
#define MPS_ENABLED 133 /* CU_DEVICE_ATTRIBUTE_MPS_ENABLED */

/* Communicators of several ranks have a thread that names itself so. A process that cannot look, for want of a
 * descriptor, does not know.  */
static bool uses_nccl(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;
	bool found = !tasks;

	while (tasks && !found && (task = readdir(tasks)) != NULL) {
		char path[300], name[32] = "";
		FILE *comm;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task->d_name);
		comm = task->d_name[0] == '.' ? NULL : fopen(path, "re");
		if (!comm) { /* or the thread has ended */
			found = task->d_name[0] != '.' && (errno == EMFILE || errno == ENFILE || errno == ENOMEM);
			continue;
		}
		if (fgets(name, sizeof(name), comm))
			found = strncmp(name, "NCCL", 4) == 0;
		fclose(comm);
	}
	if (tasks)
		closedir(tasks);
	return found;
}

static bool is_under_mps(const struct device *device)
{
	int mps = 0;

	return environment_noted("CUDA_MPS_PIPE_DIRECTORY") ||
	       (driver.cuDeviceGetAttribute(&mps, MPS_ENABLED, device->ordinal) == CUDA_SUCCESS && mps);
}

/* Return what forbids context depth now, asked while the driver still answers; NO_REASON if nothing does.  */
static enum reason objection(bool ends, struct device **device)
{
	enum reason why = checkpoint_refusal();

	if (!checkpoint_is_asked())
		return REASON_DEPTH_NOT_ASKED;
	if (why)
		return why;
	if (checkpoint_age_ns() < YOUNG_NS)
		return REASON_JUST_BEGUN;
	*device = checkpoint_only_device(&why);
	if (why)
		return why;
	if (!*device && ends && device_count_known())
		*device = device_at(0); /* the driver has its files open all the same; there is to be room for a context when it comes back */
	if (!*device)
		return REASON_NO_CONTEXT;
	if (uses_nccl())
		return REASON_USES_NCCL;
	why = nvml_objection(ends);
	if (why)
		return why;
	if (is_under_mps(*device))
		return REASON_UNDER_MPS;
	if (managed_bytes() || unmovable_bytes(device_index(*device), AFFINODE_UNMOVABLE_MANAGED))
		return REASON_USES_MANAGED;
	return NO_REASON;
}

enum reason checkpoint_objection(void)
{
	struct device *device = NULL;

	return objection(false, &device);
}

/* What the driver will need again, at least the memory that only it can move. Too much keeps the process off the GPU
 * for as long as others use it; too little may lose it. `after` NULL: not known.
 *
 * None of ours takes memory meanwhile, so the difference is this process's, unless others end or free theirs
 * meanwhile: no more than what NVML says is its own, where it does, and as much again as a context takes.  */
static uint64_t bytes_to_come_back(const struct gpu_memory *before, const struct gpu_memory *after)
{
	uint64_t own = before->own_bytes, most = (own ? own : before->used_bytes) + CONTEXT_BYTES;
	uint64_t bytes = most, least = 0;

	for (int reason = 0; reason < AFFINODE_UNMOVABLE_REASONS; reason++)
		least += unmovable_bytes(device_index(checkpoint_left.device), reason);
	if (after)
		bytes = before->used_bytes > after->used_bytes ? before->used_bytes - after->used_bytes : 0;
	if (!bytes && !own)
		least += CONTEXT_BYTES;
	if (bytes > most)
		bytes = most;
	if (bytes < own)
		bytes = own;
	return bytes > least ? bytes : least;
}

/* Make the driver's Lock and Checkpoint. Return NO_REASON, or why they failed: then the process runs as before.  */
static enum reason hold(void)
{
	struct checkpoint_lock_arguments arguments = {.timeout_ms = LOCK_TIMEOUT_MS};
	CUresult result = driver.cuCheckpointProcessLock(getpid(), &arguments);

	if (result != CUDA_SUCCESS) {
		log_line("cuCheckpointProcessLock: %d", result);
		if (checkpoint_state() == PROCESS_LOCKED)
			driver.cuCheckpointProcessUnlock(getpid(), NULL);
		return result == CUDA_ERROR_NOT_READY ? REASON_CALL_DOES_NOT_RETURN : REASON_NOT_LOCKED;
	}
	result = driver.cuCheckpointProcessCheckpoint(getpid(), NULL);
	if (result == CUDA_SUCCESS)
		return NO_REASON;
	log_line("cuCheckpointProcessCheckpoint: %d, state %d", result, checkpoint_state());
	if (checkpoint_state() == PROCESS_CHECKPOINTED)
		return NO_REASON;
	if (driver.cuCheckpointProcessUnlock(getpid(), NULL) != CUDA_SUCCESS && checkpoint_state() != PROCESS_RUNNING)
		return NO_REASON; /* still held: checkpoint_in goes on from whatever state it finds */
	if (result == CUDA_ERROR_NOT_SUPPORTED) {
		checkpoint_refuse(REASON_NOT_CHECKPOINTABLE);
		return checkpoint_refusal();
	}
	return REASON_NOT_CHECKPOINTED;
}

/* Return the host memory that the driver takes for what is still on the GPU: it fills a buffer of that size.  */
static uint64_t image_bytes(const struct device *device, const struct gpu_memory *before)
{
	uint64_t bytes = CONTEXT_BYTES;

	for (int reason = 0; reason < AFFINODE_UNMOVABLE_REASONS; reason++)
		bytes += unmovable_bytes(device_index(device), reason);
	return before->own_bytes ? before->own_bytes : bytes;
}

static bool call_waits(void)
{
	return gate_calls_waiting() || atomic_load(&gate.dying);
}

_Static_assert(CONTEXT_BYTES + SPARE_BYTES == 2 * GIB, "REASON_TOO_SMALL says 2 GiB");

enum affinode_status checkpoint_out(bool ends, char *why, size_t size)
{
	struct device *device = NULL;
	struct gpu_memory before, after;
	enum reason in_the_way = objection(ends, &device);
	bool unknown;

	snprintf(why, size, "%s", "");
	if (!in_the_way)
		slabs_unregister(call_waits);
	if (!in_the_way && checkpoint_lock_gpus(device->uuid, LOCK_TO_GO_NS) != 0)
		in_the_way = REASON_ANOTHER_RESUMES;
	if (!in_the_way && !gpu_lock_is_held(device->uuid))
		in_the_way = REASON_NO_LOCK;
	if (!in_the_way)
		in_the_way = gpu_memory_ask(device->uuid, LOOK_TO_GO_NS, &before);
	if (!in_the_way && before.divided)
		in_the_way = REASON_DIVIDED;
	if (!in_the_way && before.total_bytes < CONTEXT_BYTES + SPARE_BYTES)
		in_the_way = REASON_TOO_SMALL;
	if (!in_the_way && host_memory_left() < image_bytes(device, &before) + HOST_MEMORY_RESERVE)
		in_the_way = REASON_HOST_MEMORY_SHORT;
	if (!in_the_way && call_waits())
		in_the_way = REASON_CALL_WAITS;
	if (!in_the_way)
		migration_leaves(device->uuid);
	if (!in_the_way && (shadow_devices_take() != 0 || books_close(DRAIN_NS) != 0))
		in_the_way = REASON_CALL_IN_PROGRESS;
	if (!in_the_way) {
		deferred_begin();
		in_the_way = hold();
		if (in_the_way) {
			deferred_make();
			books_open();
		}
	}
	if (in_the_way) {
		gpu_unlock_all();
		snprintf(why, size, "%s", reason_words(in_the_way));
		log_line("the CUDA context stays on the GPU: %s", reason_words(in_the_way));
		return AFFINODE_REFUSED;
	}
	checkpoint_left.device = device;
	checkpoint_left.gpu = device->uuid;
	unknown = gpu_memory_ask(device->uuid, LOOK_TO_GO_NS, &after) != NO_REASON;
	checkpoint_left.context_bytes = bytes_to_come_back(&before, unknown ? NULL : &after);
	checkpoint_set_out(true);
	page_set_context(checkpoint_left.context_bytes, (uint32_t)device_index(device) + 1);
	page_set_depth(AFFINODE_DEPTH_CONTEXT);
	gpu_unlock_all();
	log_line("off the GPU; to come back it needs %llu bytes", (unsigned long long)checkpoint_left.context_bytes);
	return AFFINODE_OK;
}
