#include "context_depth/context_depth.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
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
#include "mover/mover.h"

#define GPU_LOCK_POLL_NS (5 * MS_NS)

struct checkpoint_left checkpoint_left;

static _Atomic bool is_started;
static uint64_t started_ns;

uint64_t checkpoint_age_ns(void)
{
	return atomic_load(&is_started) ? clock_ns() - started_ns : 0;
}

static bool driver_can_checkpoint(void)
{
	return driver.cuCheckpointProcessLock && driver.cuCheckpointProcessCheckpoint && driver.cuCheckpointProcessRestore &&
	       driver.cuCheckpointProcessUnlock && driver.cuCheckpointProcessGetState;
}

void context_depth_start(void)
{
	static const struct depth_moves moves = {checkpoint_objection, checkpoint_out, checkpoint_in};
	enum reason why = NO_REASON;

	mover_set_depth(&moves);
	shadows_tell = shadows_tell_driver;
	if (!checkpoint_is_asked())
		return;
	if (!driver_can_checkpoint())
		why = REASON_DRIVER_TOO_OLD;
	if (!why)
		why = device_count_known() ? gpu_memory_start(device_at(0)->uuid) : REASON_NO_GPU_KNOWN;
	if (!why && gpu_locks_make() != 0)
		why = REASON_NO_LOCK_FILE;
	if (!why)
		migration_start();
	shadow_devices_start();
	if (why)
		checkpoint_refuse(why);
	started_ns = clock_ns();
	atomic_store(&is_started, true);
	checkpoint_set_started();
}

int checkpoint_state(void)
{
	int state = -1;

	return driver.cuCheckpointProcessGetState(getpid(), &state) == CUDA_SUCCESS ? state : -1;
}

int checkpoint_lock_gpus(const uint8_t *to, uint64_t ns)
{
	uint64_t until = clock_ns() + ns;

	/* Our processes share it for microseconds at a time; another one's resume takes longer.  */
	while ((to ? gpu_lock_other(to) : gpu_lock_all()) != 0) {
		if (clock_ns() > until)
			return -EBUSY;
		clock_sleep_ns(GPU_LOCK_POLL_NS);
	}
	return 0;
}

struct device *checkpoint_only_device(enum reason *why)
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
		*why = REASON_SEVERAL_CONTEXTS;
	for (int i = 0; i < device_count_known() && !*why; i++) {
		unsigned int flags;
		int active = 0;

		driver.cuDevicePrimaryCtxGetState(device_at(i)->ordinal, &flags, &active);
		if (active && !device)
			device = device_at(i); /* retained, and nothing was made in it yet */
		if (active && device != device_at(i))
			*why = REASON_SEVERAL_GPUS;
	}
	return device;
}

/* In the child of a fork: its copy of the driver's state may be that of a held process, so calls must not come to the driver.  */
void context_depth_begin_again(void)
{
	if (atomic_load(&is_started) && checkpoint_is_asked())
		devices_let_go();
	shadows_begin_again();
	books_begin_again();
	if (books_are_closed()) {
		atomic_fetch_or(&gate.word, GATE_CLOSED);
		gate_set_dying();
	}
}
