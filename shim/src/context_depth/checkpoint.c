#include "context_depth/internal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "context_depth/bookkeeping_gate.h"
#include "context_depth/deferred_calls.h"
#include "driver/real_driver.h"
#include "context_depth/migrate.h"
#include "base/environment.h"
#include "gate/gate.h"
#include "context_depth/gpu_lock.h"
#include "context_depth/nvml_probe.h"
#include "base/log.h"
#include "context_depth/nvml_gate.h"
#include "context_depth/shadow.h"

#define GPU_LOCK_POLL_NS (5 * MS_NS)

struct checkpoint_api checkpoint_api;
struct checkpoint_left checkpoint_left;

static _Atomic int asked = -1;
static _Atomic bool is_out, is_started;
static _Atomic(const char *) refusal;
static uint64_t started_ns;

bool checkpoint_is_asked(void)
{
	int known = atomic_load_explicit(&asked, memory_order_relaxed);

	if (known < 0) {
		const char *value = environment_now(AFFINODE_ENV_DEPTH);

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

void checkpoint_set_out(bool out)
{
	atomic_store(&is_out, out);
}

const char *checkpoint_refusal(void)
{
	return atomic_load(&refusal);
}

uint64_t checkpoint_age_ns(void)
{
	return atomic_load(&is_started) ? clock_ns() - started_ns : 0;
}

void checkpoint_refuse(const char *why)
{
	const char *none = NULL;

	if (checkpoint_is_asked() && atomic_compare_exchange_strong(&refusal, &none, why))
		log_line("the CUDA context stays on the GPU: %s", why);
}

static bool find_api(void)
{
	*(void **)&checkpoint_api.lock = driver_find("cuCheckpointProcessLock", 12080);
	*(void **)&checkpoint_api.checkpoint = driver_find("cuCheckpointProcessCheckpoint", 12080);
	*(void **)&checkpoint_api.restore = driver_find("cuCheckpointProcessRestore", 12080);
	*(void **)&checkpoint_api.unlock = driver_find("cuCheckpointProcessUnlock", 12080);
	*(void **)&checkpoint_api.state = driver_find("cuCheckpointProcessGetState", 12080);
	return checkpoint_api.lock && checkpoint_api.checkpoint && checkpoint_api.restore && checkpoint_api.unlock &&
	       checkpoint_api.state;
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

int checkpoint_state(void)
{
	int state = -1;

	return checkpoint_api.state(getpid(), &state) == CUDA_SUCCESS ? state : -1;
}

bool checkpoint_lock_gpus(const uint8_t *to, uint64_t ns)
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

struct device *checkpoint_only_device(const char **why)
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
