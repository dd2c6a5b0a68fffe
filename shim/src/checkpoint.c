#include "checkpoint.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blocks.h"
#include "books.h"
#include "clock.h"
#include "contexts.h"
#include "deferred.h"
#include "driver.h"
#include "elsewhere.h"
#include "environment.h"
#include "gate.h"
#include "gpu_lock.h"
#include "gpu_memory.h"
#include "log.h"
#include "managed.h"
#include "nvml_gate.h"
#include "page.h"
#include "shadows.h"
#include "shim.h"
#include "slabs.h"
#include "tally.h"

#define GIB (1ull << 30)
/* Free beyond what the context needs: what others of ours that hold no lock (small allocations, code) may take meanwhile.  */
#define SPARE_BYTES GIB
/* A context takes about 0.6 GiB of an H200.  */
#define CONTEXT_BYTES GIB
#define DRAIN_NS (100 * MS_NS)
#define LOCK_TIMEOUT_MS 1000u
/* To come back one waits for another's resume; to go away, a caller may be waiting for us.  */
#define LOCK_TO_COME_BACK_NS (5 * S_NS)
#define LOCK_TO_GO_NS (100 * MS_NS)
/* NVML has to wake a GPU that nobody uses any more.  */
#define LOOK_TO_GO_NS (2 * S_NS)
#define LOOK_TO_COME_BACK_NS (5 * S_NS)
#define GPU_LOCK_POLL_NS (5 * MS_NS)
/* The others' belief that nobody needs the GPU's lock must have passed (gpu_lock.c).  */
#define YOUNG_NS (3 * S_NS)
#define MPS_ENABLED 133 /* CU_DEVICE_ATTRIBUTE_MPS_ENABLED */

enum { RUNNING = 0, LOCKED = 1, CHECKPOINTED = 2, FAILED = 3 }; /* CUprocessState */

/* As cuda.h of CUDA 12.8 declares them; the other calls' structs are all reserved and may be NULL.  */
struct lock_arguments {
	unsigned int timeout_ms, reserved0;
	uint64_t reserved1[7];
};

static struct {
	CUresult (*lock)(int, struct lock_arguments *);
	CUresult (*checkpoint)(int, void *);
	CUresult (*restore)(int, void *);
	CUresult (*unlock)(int, void *);
	CUresult (*state)(int, int *);
} api;

static _Atomic int asked = -1;
static _Atomic bool is_out, is_started;
static _Atomic(const char *) refusal;
static uint64_t started_ns;
static struct device *gone_from; /* the GPU that the context was taken off */
static uint64_t context_bytes;   /* what it needs to come back */

bool checkpoint_is_asked(void)
{
	int known = atomic_load_explicit(&asked, memory_order_relaxed);

	if (known < 0) {
		const char *value = getenv(AFFINODE_ENV_DEPTH);

		known = value && strcmp(value, "context") == 0;
		atomic_store(&asked, known);
	}
	return known;
}

bool checkpoint_is_possible(void)
{
	return checkpoint_is_asked() && atomic_load(&is_started) && !atomic_load(&refusal);
}

bool checkpoint_is_out(void)
{
	return atomic_load(&is_out);
}

void checkpoint_refuse(const char *why)
{
	const char *none = NULL;

	if (checkpoint_is_asked() && atomic_compare_exchange_strong(&refusal, &none, why))
		log_line("the CUDA context stays on the GPU: %s", why);
}

static bool find_api(void)
{
	*(void **)&api.lock = driver_find("cuCheckpointProcessLock", 12080);
	*(void **)&api.checkpoint = driver_find("cuCheckpointProcessCheckpoint", 12080);
	*(void **)&api.restore = driver_find("cuCheckpointProcessRestore", 12080);
	*(void **)&api.unlock = driver_find("cuCheckpointProcessUnlock", 12080);
	*(void **)&api.state = driver_find("cuCheckpointProcessGetState", 12080);
	return api.lock && api.checkpoint && api.restore && api.unlock && api.state;
}

void checkpoint_start(void)
{
	const char *why = NULL;

	if (!checkpoint_is_asked())
		return;
	if (!find_api())
		why = "this driver cannot checkpoint a process (needs CUDA 12.8)";
	if (!why)
		why = device_count_known() ? gpu_memory_start(device_at(0)->uuid) : "no GPU is known";
	if (!why && !gpu_locks_make())
		why = "no lock file can be had for the GPU";
	if (!why)
		elsewhere_start();
	shadows_start();
	if (why)
		checkpoint_refuse(why);
	started_ns = clock_ns();
	atomic_store(&is_started, true);
}

/* Communicators of several ranks have a thread that names itself so.  */
static bool uses_nccl(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;
	bool found = false;

	while (tasks && !found && (task = readdir(tasks)) != NULL) {
		char path[300], name[32] = "";
		FILE *comm;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task->d_name);
		comm = task->d_name[0] == '.' ? NULL : fopen(path, "re");
		if (!comm)
			continue;
		if (fgets(name, sizeof(name), comm))
			found = strncmp(name, "NCCL", 4) == 0;
		fclose(comm);
	}
	if (tasks)
		closedir(tasks);
	return found;
}

/* The one device and context in use; NULL, or *why not.  */
static struct device *only_device(const char **why)
{
	struct device *device = NULL;
	unsigned contexts = 0;

	for (struct context *context = contexts_first(); context; context = context->next) {
		if (!context->handle)
			continue;
		device = context->device;
		contexts++;
	}
	if (contexts > 1)
		*why = "the process uses several CUDA contexts";
	for (int i = 0; i < device_count_known() && !*why; i++) {
		unsigned int flags;
		int active = 0;

		driver.cuDevicePrimaryCtxGetState(device_at(i)->ordinal, &flags, &active);
		if (active && device != device_at(i))
			*why = "the process uses several GPUs";
	}
	return device;
}

static bool is_under_mps(const struct device *device)
{
	int mps = 0;

	return getenv("CUDA_MPS_PIPE_DIRECTORY") ||
	       (driver.cuDeviceGetAttribute(&mps, MPS_ENABLED, device->ordinal) == CUDA_SUCCESS && mps);
}

/* What forbids it now, while the driver still answers; NULL: nothing.  */
static const char *objection(struct device **device)
{
	const char *why = atomic_load(&refusal);

	if (!checkpoint_is_asked())
		return "context depth was not asked for (AFFINODE_DEPTH)";
	if (why)
		return why;
	if (!atomic_load(&is_started) || clock_ns() - started_ns < YOUNG_NS)
		return "the process has just begun";
	*device = only_device(&why);
	if (why)
		return why;
	if (!*device)
		return "no CUDA context is known";
	if (uses_nccl())
		return "the process uses NCCL";
	why = nvml_objection();
	if (why)
		return why;
	if (is_under_mps(*device))
		return "the GPU is shared through MPS";
	if (managed_bytes() || tally_bytes(device_index(*device), AFFINODE_FIXED_MANAGED))
		return "the process uses managed memory";
	return NULL;
}

const char *checkpoint_objection(void)
{
	struct device *device = NULL;

	return objection(&device);
}

static int state_now(void)
{
	int state = -1;

	return api.state(getpid(), &state) == CUDA_SUCCESS ? state : -1;
}

/* `to`: another GPU's alone; NULL: all of the process's.  */
static bool lock_gpus(const uint8_t *to, uint64_t ns)
{
	uint64_t until = clock_ns() + ns;

	/* Our processes share it for microseconds at a time; another one's resume takes longer.  */
	while (!(to ? gpu_lock_other(to) : gpu_lock_all())) {
		if (clock_ns() > until)
			return false;
		clock_sleep_ns(GPU_LOCK_POLL_NS);
	}
	return true;
}

/* What the driver will need again. Nobody of ours takes memory meanwhile, so the difference is this process's; if others give
 * some back, it is too large, which is the safe side.  */
static uint64_t bytes_to_come_back(const struct gpu_memory *before, const struct gpu_memory *after)
{
	uint64_t bytes = before->used_bytes > after->used_bytes ? before->used_bytes - after->used_bytes : 0;
	uint64_t least = 0;

	for (int reason = 0; reason < AFFINODE_FIXED_REASONS; reason++)
		least += tally_bytes(device_index(gone_from), reason);
	if (!bytes && !before->own_bytes)
		least += CONTEXT_BYTES;
	if (bytes < before->own_bytes)
		bytes = before->own_bytes;
	return bytes > least ? bytes : least;
}

/* The driver's Lock and Checkpoint; NULL, or why not: then the process runs as before.  */
static const char *hold(void)
{
	struct lock_arguments arguments = {.timeout_ms = LOCK_TIMEOUT_MS};
	CUresult result = api.lock(getpid(), &arguments);

	if (result != CUDA_SUCCESS) {
		log_line("cuCheckpointProcessLock: %d", result);
		if (state_now() == LOCKED)
			api.unlock(getpid(), NULL);
		return result == CUDA_ERROR_NOT_READY ? "a CUDA call does not come back"
						      : "the driver did not let the process be locked";
	}
	result = api.checkpoint(getpid(), NULL);
	if (result == CUDA_SUCCESS)
		return NULL;
	log_line("cuCheckpointProcessCheckpoint: %d, state %d", result, state_now());
	if (state_now() == CHECKPOINTED)
		return NULL;
	if (api.unlock(getpid(), NULL) != CUDA_SUCCESS && state_now() != RUNNING)
		return NULL; /* still held: checkpoint_in goes on from whatever state it finds */
	if (result == CUDA_ERROR_NOT_SUPPORTED) {
		checkpoint_refuse("the driver does not checkpoint what the process uses (managed memory, IPC, …)");
		return atomic_load(&refusal);
	}
	return "the driver could not checkpoint the process";
}

static bool somebody_waits(void)
{
	return gate_calls_waiting() || atomic_load(&gate.dying);
}

enum affinode_status checkpoint_out(char *why, size_t size)
{
	struct device *device = NULL;
	struct gpu_memory before, after;
	const char *in_the_way = objection(&device);

	snprintf(why, size, "%s", "");
	if (!in_the_way)
		slabs_unregister(somebody_waits);
	if (!in_the_way && !lock_gpus(NULL, LOCK_TO_GO_NS))
		in_the_way = "another kernel is resuming";
	if (!in_the_way && !gpu_lock_is_held(device->uuid))
		in_the_way = "no lock can be had for the GPU";
	if (!in_the_way)
		in_the_way = gpu_memory_look(device->uuid, LOOK_TO_GO_NS, &before);
	if (!in_the_way && before.divided)
		in_the_way = "the GPU is divided (MIG)";
	if (!in_the_way && before.total_bytes < CONTEXT_BYTES + SPARE_BYTES)
		in_the_way = "the GPU is too small to be sure of the way back";
	if (!in_the_way && somebody_waits())
		in_the_way = "a CUDA call waits";
	if (!in_the_way && (!shadows_take() || books_close(DRAIN_NS) != 0))
		in_the_way = "a CUDA call is in progress";
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
		snprintf(why, size, "%s", in_the_way);
		log_line("the CUDA context stays on the GPU: %s", in_the_way);
		return AFFINODE_REFUSED;
	}
	gone_from = device;
	context_bytes = gpu_memory_look(device->uuid, LOOK_TO_GO_NS, &after) ? before.used_bytes + CONTEXT_BYTES
									: bytes_to_come_back(&before, &after);
	atomic_store(&is_out, true);
	page_set_context_bytes(context_bytes);
	page_set_depth(AFFINODE_DEPTH_CONTEXT);
	gpu_unlock_all();
	log_line("off the GPU; to come back it needs %llu bytes", (unsigned long long)context_bytes);
	return AFFINODE_OK;
}

static uint64_t parked_bytes(const struct device *device)
{
	struct block_bytes bytes[AFFINODE_MAX_GPUS];
	uint64_t shared[AFFINODE_MAX_GPUS], mapped[AFFINODE_MAX_GPUS], generation = 0;
	int gpu = device_index(device);

	if (gpu >= (int)AFFINODE_MAX_GPUS || !blocks_sum(bytes, shared, mapped, &generation))
		return 0;
	return bytes[gpu].parked;
}

/* What must be free: for Restore more than it needs, and for the memory that follows, which may use what was spared, since it
 * is all or nothing and loses nothing.  */
static uint64_t bytes_needed(void)
{
	uint64_t all = context_bytes + parked_bytes(gone_from);
	uint64_t sure = (context_bytes > CONTEXT_BYTES ? context_bytes : CONTEXT_BYTES) + SPARE_BYTES;

	return all > sure ? all : sure;
}

/* On the GPU `to`, or where it was (NULL).  */
static enum affinode_status look_for_room(const uint8_t *to, char *why, size_t size)
{
	const uint8_t *gpu = to ? to : gone_from->uuid;
	const char *unknown = "no lock can be had for the GPU";
	struct gpu_memory memory;

	if (gpu_lock_is_held(gpu))
		unknown = to ? elsewhere_look(gone_from, to, LOOK_TO_COME_BACK_NS, &memory)
			     : gpu_memory_look(gpu, LOOK_TO_COME_BACK_NS, &memory);
	if (unknown && to) {
		snprintf(why, size, "%s", unknown);
		return AFFINODE_REFUSED;
	}
	if (unknown) {
		snprintf(why, size, "nobody knows how much of the GPU is free: %s", unknown);
		return AFFINODE_NO_GPU_ROOM;
	}
	if (memory.free_bytes >= bytes_needed())
		return AFFINODE_OK;
	snprintf(why, size, "the GPU is full: %.1f GiB are free, %.1f are needed", (double)memory.free_bytes / GIB,
		 (double)bytes_needed() / GIB);
	return AFFINODE_NO_GPU_ROOM;
}

static enum affinode_status lost(char *why, size_t size)
{
	snprintf(why, size, "the driver lost the process's GPU state while bringing it back");
	log_line("%s", why);
	tell_person("%s. Restart the kernel.", why);
	shim_give_up_parking("the driver lost the process");
	shim_move_state(shim_state(), AFFINODE_STATE_LOST);
	gate_set_dying(); /* or every call would wait for ever */
	return AFFINODE_FAILED;
}

/* The driver's Restore where there is room for it. Anything but AFFINODE_OK: it is held as before, or lost.  */
static enum affinode_status restore(const uint8_t *to, char *why, size_t size)
{
	uint64_t begin = clock_ns(), looked;
	enum affinode_status status = look_for_room(to, why, size);
	CUresult result;
	int state;

	if (status != AFFINODE_OK)
		return status;
	looked = clock_ns();
	result = api.restore(getpid(), to ? elsewhere_arguments(gone_from, to) : NULL);
	log_line("context: looked for room in %.1f ms, restored in %.1f ms: %d", (double)(looked - begin) / 1e6,
		 (double)(clock_ns() - looked) / 1e6, result);
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		return lost(why, size);
	state = state_now();
	if (to && (result == CUDA_SUCCESS || state == LOCKED)) {
		elsewhere_arrived(gone_from, to);
		shadow_devices_moved();
	}
	if (result == CUDA_SUCCESS || state == LOCKED || state == RUNNING)
		return AFFINODE_OK;
	if (state == FAILED)
		return lost(why, size);
	snprintf(why, size, "the driver could not bring the CUDA context back%s (error %d, state %d)",
		 to ? " on that GPU" : "", result, state);
	log_line("%s", why);
	return to && state == CHECKPOINTED ? AFFINODE_REFUSED : AFFINODE_FAILED;
}

/* The driver's Restore and Unlock, from whatever state an attempt before this one left.  */
static enum affinode_status let_go(const uint8_t *to, char *why, size_t size)
{
	int state = state_now();
	CUresult result = CUDA_SUCCESS;
	uint64_t begin;

	if (state == FAILED)
		return lost(why, size);
	if (to && state != CHECKPOINTED) {
		snprintf(why, size, "the driver has brought the context back where it was already");
		return AFFINODE_REFUSED;
	}
	if (state == CHECKPOINTED || state < 0) {
		enum affinode_status status = restore(to, why, size);

		if (status != AFFINODE_OK)
			return status;
		state = state_now();
	}
	begin = clock_ns();
	if (state == LOCKED)
		result = api.unlock(getpid(), NULL);
	state = state_now();
	log_line("context: unlocked in %.1f ms", (double)(clock_ns() - begin) / 1e6);
	if (state == RUNNING)
		return AFFINODE_OK;
	snprintf(why, size, "the driver could not bring the CUDA context back (error %d, state %d)", result, state);
	log_line("%s", why);
	return state == FAILED ? lost(why, size) : AFFINODE_FAILED;
}

/* The driver holds nothing: whether the process uses that GPU alone.  */
static bool is_on(const uint8_t *gpu)
{
	const char *why = NULL;
	const struct device *device = only_device(&why);

	return device && !why && memcmp(device->uuid, gpu, 16) == 0;
}

enum affinode_status checkpoint_in(const uint8_t *to, char *why, size_t size)
{
	enum affinode_status status;

	snprintf(why, size, "%s", "");
	if (!checkpoint_is_out()) {
		if (!to || is_on(to))
			return AFFINODE_OK;
		snprintf(why, size, "its CUDA context is still on its GPU: only what is parked at context depth moves");
		return AFFINODE_REFUSED;
	}
	if (to && memcmp(gone_from->uuid, to, 16) == 0)
		to = NULL;
	if (!lock_gpus(to, LOCK_TO_COME_BACK_NS)) {
		snprintf(why, size, "another kernel is resuming");
		return AFFINODE_NO_GPU_ROOM;
	}
	status = let_go(to, why, size);
	if (status != AFFINODE_OK) {
		gpu_unlock_all();
		return status;
	}
	deferred_make();
	atomic_store(&is_out, false);
	page_set_depth(AFFINODE_DEPTH_MEMORY);
	page_set_context_bytes(0);
	books_open();
	return AFFINODE_OK;
}

void checkpoint_has_room(void)
{
	gpu_unlock_all();
}

/* Its copy of the driver's state may be the held one: calls must not come to it.  */
void checkpoint_reset_in_child(void)
{
	deferred_reset_in_child();
	shadows_reset_in_child();
	books_reset_in_child();
	nvml_reset_in_child();
	if (books_are_closed()) {
		atomic_fetch_or(&gate.word, GATE_CLOSED);
		gate_set_dying();
	}
}
