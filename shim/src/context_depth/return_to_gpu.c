/* Bringing the context back, where it was or on another GPU.  */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "context_depth/bookkeeping_gate.h"
#include "context_depth/deferred_calls.h"
#include "context_depth/internal.h"
#include "context_depth/migrate.h"
#include "context_depth/nvml/nvml_probe.h"
#include "driver/real_driver.h"
#include "gate/gate.h"
#include "gpu/gpu_lock.h"
#include "memory/blocks/block.h"
#include "state/shim_state.h"
#include "state/status_page.h"

/* One waits for another's resume.  */
#define LOCK_TO_COME_BACK_NS (5 * S_NS)
#define LOOK_TO_COME_BACK_NS (5 * S_NS)
/* What was seen of the GPU is believed for so long: others take no notice of the lock of a process that stands still
 * (gpu_lock.c), and a process does not know that it did.  */
#define BELIEVED_NS S_NS
#define LOOKS 5

/* Where the process comes back.  */
struct way {
	const uint8_t *to; /* another GPU than the one that it left; NULL: that one */
	bool is_named;     /* by the controller, which may name another */
};

static bool gpu_is_gone; /* NVML did not know it at the last look */

static uint64_t parked_bytes(const struct device *device)
{
	struct block_bytes bytes[AFFINODE_MAX_GPUS];
	uint64_t shared[AFFINODE_MAX_GPUS], mapped[AFFINODE_MAX_GPUS], generation = 0;
	int gpu = device_index(device);

	if (gpu >= (int)AFFINODE_MAX_GPUS || !blocks_sum(bytes, shared, mapped, &generation))
		return 0;
	return bytes[gpu].parked;
}

/* What must be free: for Restore more than it needs, and for the memory that follows, which may use what was
 * spared, since it is all or nothing and loses nothing.  */
static uint64_t bytes_needed(void)
{
	uint64_t context = checkpoint_left.context_bytes, all = context + parked_bytes(checkpoint_left.device);
	uint64_t sure = (context > CONTEXT_BYTES ? context : CONTEXT_BYTES) + SPARE_BYTES;

	return all > sure ? all : sure;
}

/* Check that the GPU has room for the context and what follows.  */
static enum affinode_status check_room(const struct way *way, char *why, size_t size)
{
	const uint8_t *gpu = way->to ? way->to : checkpoint_left.gpu;
	enum reason unknown = REASON_NO_LOCK;
	struct gpu_memory memory;

	if (gpu_lock_is_held(gpu))
		unknown = way->to ? migration_check(checkpoint_left.device, checkpoint_left.gpu, gpu, LOOK_TO_COME_BACK_NS, &memory)
				  : gpu_memory_ask(gpu, LOOK_TO_COME_BACK_NS, &memory);
	gpu_is_gone = unknown == REASON_NVML_NO_GPU || unknown == REASON_NVML_NO_OTHER_GPU;
	if (unknown && way->to) {
		snprintf(why, size, "%s", reason_words(unknown));
		return way->is_named ? AFFINODE_REFUSED : AFFINODE_NO_GPU_ROOM;
	}
	if (unknown) {
		snprintf(why, size, "it is not known how much of the GPU is free: %s", reason_words(unknown));
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

/* Check the same with a look at the GPU that has just been made.  */
static enum affinode_status check_room_just_now(const struct way *way, char *why, size_t size)
{
	for (int i = 0; i < LOOKS; i++) {
		uint64_t begin = clock_ns();
		enum affinode_status status = check_room(way, why, size);

		if (status != AFFINODE_OK || clock_ns() - begin < BELIEVED_NS)
			return status;
	}
	snprintf(why, size, "the look at the GPU's memory takes too long");
	return way->is_named ? AFFINODE_REFUSED : AFFINODE_NO_GPU_ROOM;
}

/* Have the driver restore the process where there is room for it. Unless the result is AFFINODE_OK, the process is held as
 * before, or lost.  */
static enum affinode_status restore(const struct way *way, char *why, size_t size)
{
	uint64_t begin = clock_ns(), looked;
	enum affinode_status status = check_room_just_now(way, why, size);
	const uint8_t *to = way->to;
	CUresult result;
	int state;

	if (status != AFFINODE_OK)
		return status;
	looked = clock_ns();
	result = driver.cuCheckpointProcessRestore(getpid(), to ? migration_arguments(checkpoint_left.gpu, to) : NULL);
	log_line("context: looked for room in %.1f ms, restored in %.1f ms: %d", (double)(looked - begin) / 1e6,
		 (double)(clock_ns() - looked) / 1e6, result);
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		return lost(why, size);
	state = checkpoint_state();
	if (to && (result == CUDA_SUCCESS || state == PROCESS_LOCKED))
		checkpoint_left.gpu = migration_restored(checkpoint_left.device, checkpoint_left.gpu, to);
	if (result == CUDA_SUCCESS || state == PROCESS_LOCKED || state == PROCESS_RUNNING)
		return AFFINODE_OK;
	if (state == PROCESS_FAILED)
		return lost(why, size);
	snprintf(why, size, "the driver could not bring the CUDA context back%s (error %d, state %d)",
		 to ? " on that GPU" : "", result, state);
	log_line("%s", why);
	return way->is_named && state == PROCESS_CHECKPOINTED ? AFFINODE_REFUSED : AFFINODE_FAILED;
}

/* Have the driver restore and unlock the process, from whatever state an attempt before this one left.  */
static enum affinode_status let_go(const struct way *way, char *why, size_t size)
{
	int state = checkpoint_state();
	CUresult result = CUDA_SUCCESS;
	uint64_t begin;

	if (state == PROCESS_FAILED)
		return lost(why, size);
	if (way->is_named && state != PROCESS_CHECKPOINTED) {
		snprintf(why, size, "the driver has brought the context back where it was already");
		return AFFINODE_REFUSED;
	}
	if (state == PROCESS_CHECKPOINTED || state < 0) {
		enum affinode_status status = restore(way, why, size);

		if (status != AFFINODE_OK)
			return status;
		state = checkpoint_state();
	}
	begin = clock_ns();
	if (state == PROCESS_LOCKED)
		result = driver.cuCheckpointProcessUnlock(getpid(), NULL);
	state = checkpoint_state();
	log_line("context: unlocked in %.1f ms", (double)(clock_ns() - begin) / 1e6);
	if (state == PROCESS_RUNNING) {
		migration_confirm(checkpoint_left.device);
		return AFFINODE_OK;
	}
	snprintf(why, size, "the driver could not bring the CUDA context back (error %d, state %d)", result, state);
	log_line("%s", why);
	return state == PROCESS_FAILED ? lost(why, size) : AFFINODE_FAILED;
}

/* Return whether the process uses that GPU alone. Called while the driver does not hold it.  */
static bool is_on(const uint8_t *gpu)
{
	enum reason why = NO_REASON;
	const struct device *device = checkpoint_only_device(&why);

	return device && !why && memcmp(device->uuid, gpu, 16) == 0;
}

/* Lock that GPU alone, so that others may resume on theirs meanwhile; where its file was removed, lock all GPUs, with new
 * files. Return 0 or -EBUSY.  */
static int lock_to_come_back(const uint8_t *gpu)
{
	int error = checkpoint_lock_gpus(gpu, LOCK_TO_COME_BACK_NS);

	return error || gpu_lock_is_held(gpu) ? error : checkpoint_lock_gpus(NULL, LOCK_TO_COME_BACK_NS);
}

/* Unless the result is AFFINODE_OK, nothing is locked, and the process is held as before, or lost.  */
static enum affinode_status come_back(const uint8_t *gpu, bool is_named, char *why, size_t size)
{
	bool is_same = memcmp(checkpoint_left.gpu, gpu, 16) == 0;
	struct way way = {is_same ? NULL : gpu, is_named && !is_same};
	enum affinode_status status;

	gpu_is_gone = false;
	if (lock_to_come_back(gpu) != 0) {
		snprintf(why, size, "%s", reason_words(REASON_ANOTHER_RESUMES));
		return AFFINODE_NO_GPU_ROOM;
	}
	status = let_go(&way, why, size);
	if (status != AFFINODE_OK)
		gpu_unlock_all();
	return status;
}

/* The same where the controller names no GPU: on the one that the device is. If the machine has it no longer, another is chosen for the
 * next resume: until then the controller, which the page tells of it, has made room there.  */
static enum affinode_status come_back_anywhere(char *why, size_t size)
{
	const uint8_t *gpu = checkpoint_left.device->uuid;
	enum affinode_status status = come_back(gpu, false, why, size);
	enum reason none;

	if (status != AFFINODE_NO_GPU_ROOM || (!gpu_is_gone && memcmp(gpu, checkpoint_left.gpu, 16) == 0))
		return status;
	none = migration_choose(checkpoint_left.device, checkpoint_left.gpu, bytes_needed());
	if (none)
		snprintf(why, size, "%s", reason_words(none));
	else if (checkpoint_left.device->uuid != gpu)
		snprintf(why, size, "it was woken on another machine, and comes back on another GPU");
	return status;
}

enum affinode_status checkpoint_in(const uint8_t *to, char *why, size_t size)
{
	enum affinode_status status;

	snprintf(why, size, "%s", "");
	if (!checkpoint_is_out()) {
		if (!to || is_on(to))
			return AFFINODE_OK;
		snprintf(why, size, "its CUDA context is still on its GPU, so it cannot change the GPU");
		return AFFINODE_REFUSED;
	}
	status = to ? come_back(to, true, why, size) : come_back_anywhere(why, size);
	if (status != AFFINODE_OK)
		return status;
	deferred_make();
	checkpoint_set_out(false);
	page_set_depth(AFFINODE_DEPTH_MEMORY);
	page_set_context(0, 0);
	books_open();
	return AFFINODE_OK;
}
