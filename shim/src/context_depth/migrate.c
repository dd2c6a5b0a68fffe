#include "context_depth/migrate.h"

#include <stdatomic.h>
#include <string.h>

#include "base/log.h"
#include "base/monotonic_futex.h"
#include "context_depth/shadow/shadow.h"
#include "driver/real_driver.h"
#include "gpu/contexts.h"
#include "gpu/gpu_lock.h"
#include "memory/blocks/block.h"
#include "state/depth.h"

#define FIRST_LOOK_NS (5 * S_NS)
#define CONFIRM_NS (2 * S_NS)
/* Drivers before CUDA 13.0 take no pairs, and would bring the process back where it was, without a word.  */
#define PAIRS_SINCE 13000

/* As cuda.h of CUDA 13.0 declares them; what is reserved there, or has become something else since, is zero.  */
struct gpu_pair {
	uint8_t from[16], to[16];
};
struct restore_arguments {
	struct gpu_pair *pairs;
	unsigned int count, zero;
	uint64_t zeros[6];
};
_Static_assert(sizeof(struct restore_arguments) == 64, "CUcheckpointRestoreArgs");

/* The GPUs as of the last look. They are the mover's; before there is a mover, the application's thread's.  */
static struct gpu_listed gpus[GPUS_LISTED];
static unsigned gpu_count;
static struct gpu_pair pairs[GPUS_LISTED];
static struct restore_arguments arguments;

static const struct gpu_listed *find(const uint8_t uuid[16])
{
	for (unsigned i = 0; i < gpu_count; i++)
		if (memcmp(gpus[i].uuid, uuid, sizeof(gpus[i].uuid)) == 0)
			return &gpus[i];
	return NULL;
}

/* Return why no process can go from one GPU to the other; NO_REASON if it can.  */
static enum reason unlike(const struct gpu_listed *from, const struct gpu_listed *to)
{
	if (strcmp(from->name, to->name) != 0)
		return REASON_OTHER_KIND;
	if (from->memory.divided || to->memory.divided)
		return REASON_ONE_DIVIDED;
	if (!to->shared)
		return REASON_EXCLUSIVE;
	return NO_REASON;
}

static bool has_pairs(void)
{
	int version = 0;

	return driver.cuDriverGetVersion && driver.cuDriverGetVersion(&version) == CUDA_SUCCESS && version >= PAIRS_SINCE;
}

void migration_start(void)
{
	bool found = false;

	if (!has_pairs() || gpu_memory_list(FIRST_LOOK_NS, gpus, &gpu_count))
		return;
	for (int device = 0; device < device_count_known(); device++) {
		const struct gpu_listed *own = find(device_at(device)->uuid);

		for (unsigned i = 0; own && i < gpu_count; i++)
			if (&gpus[i] != own && !unlike(own, &gpus[i]) && gpu_lock_make(gpus[i].uuid) == 0)
				found = true;
	}
	migration_set_possible(found);
}

/* Return whether memory of this process, or access to it, belongs to another of its devices too.  */
static bool spreads(const struct device *device)
{
	struct block_bytes bytes[AFFINODE_MAX_GPUS] = {{0, 0}};
	uint64_t shared[AFFINODE_MAX_GPUS] = {0}, mapped[AFFINODE_MAX_GPUS] = {0}, generation = 0;
	bool found = false;

	blocks_sum(bytes, shared, mapped, &generation);
	for (int i = 0; i < device_count_known() && !found; i++) {
		const struct device *other = device_at(i);

		found = other->peers || (other != device && i < (int)AFFINODE_MAX_GPUS &&
					 (bytes[i].parked || bytes[i].resident || shared[i] || mapped[i]));
	}
	return found;
}

enum reason migration_check(const struct device *from, const uint8_t to[16], uint64_t ns, struct gpu_memory *memory)
{
	const struct gpu_listed *here, *there;
	enum reason why;

	if (!migration_is_possible())
		return REASON_NO_OTHER_GPU;
	if (spreads(from))
		return REASON_SPREADS;
	why = gpu_memory_list(ns, gpus, &gpu_count);
	if (why)
		return why;
	here = find(from->uuid);
	there = find(to);
	if (!here || !there)
		return REASON_NVML_NO_OTHER_GPU;
	*memory = there->memory;
	if (!memory->total_bytes)
		return REASON_NVML_NO_OTHER_FIGURES;
	return unlike(here, there);
}

void *migration_arguments(const struct device *from, const uint8_t to[16])
{
	const struct gpu_listed *here = find(from->uuid), *there = find(to);

	for (unsigned i = 0; i < gpu_count; i++) {
		const struct gpu_listed *then = &gpus[i] == here ? there : &gpus[i] == there ? here : &gpus[i];

		memcpy(pairs[i].from, gpus[i].uuid, sizeof(pairs[i].from));
		memcpy(pairs[i].to, then->uuid, sizeof(pairs[i].to));
	}
	memset(&arguments, 0, sizeof(arguments));
	arguments.pairs = pairs;
	arguments.count = gpu_count;
	return &arguments;
}

void migration_restored(struct device *device, const uint8_t to[16])
{
	const struct gpu_listed *there = find(to);
	char before[GPU_UUID_TEXT], now[GPU_UUID_TEXT];

	gpu_uuid_text(device->uuid, before);
	gpu_uuid_text(to, now);
	log_line("the context was on %s and is on %s", before, now);
	device_is_now(device, to, there ? gpu_numa_node(there->pci_id) : -1);
	shadow_devices_moved();
}

/* Return whether NVML sees this process on that GPU: it decides where the driver and Restore disagree. In containers NVML may
 * not tell processes apart.  */
static bool is_seen_on(const uint8_t uuid[16])
{
	const struct gpu_listed *gpu = gpu_memory_list(CONFIRM_NS, gpus, &gpu_count) ? NULL : find(uuid);

	return gpu && gpu->memory.own_bytes;
}

void migration_confirm(struct device *device)
{
	uint8_t now[16];

	if (driver.cuDeviceGetUuid(now, device->ordinal) != CUDA_SUCCESS ||
	    memcmp(now, device->uuid, sizeof(now)) == 0 || !find(now))
		return;
	migration_set_possible(false);
	if (is_seen_on(device->uuid)) {
		log_line("the driver names another GPU than the one that NVML sees the process on");
		return;
	}
	log_line("the driver brought the context back on another GPU than it was told");
	migration_restored(device, now);
}
