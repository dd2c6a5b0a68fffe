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

#define LOOK_NS (5 * S_NS)
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

struct gpu_list {
	struct gpu_listed gpus[GPUS_LISTED];
	unsigned count;
};

/* The GPUs as of the last look, and those of the machine on which the process left its GPU. They are the mover's; before there is
 * a mover, the application's thread's.  */
static struct gpu_list here, there_then;
static struct gpu_pair pairs[GPUS_LISTED];
static struct restore_arguments arguments;

static enum reason list_gpus(uint64_t ns)
{
	return gpu_memory_list(ns, here.gpus, &here.count);
}

static bool is_same(const uint8_t uuid[16], const uint8_t other[16])
{
	return memcmp(uuid, other, 16) == 0;
}

static const struct gpu_listed *find(const struct gpu_list *list, const uint8_t uuid[16])
{
	for (unsigned i = 0; i < list->count; i++)
		if (is_same(list->gpus[i].uuid, uuid))
			return &list->gpus[i];
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

/* Have others heed the locks of the GPUs that this process may come to.  */
static void make_locks(void)
{
	bool found = false;

	for (int device = 0; device < device_count_known(); device++) {
		const struct gpu_listed *own = find(&here, device_at(device)->uuid);

		for (unsigned i = 0; own && i < here.count; i++)
			if (&here.gpus[i] != own && !unlike(own, &here.gpus[i]) && gpu_lock_make(here.gpus[i].uuid) == 0)
				found = true;
	}
	migration_set_possible(found);
}

void migration_start(void)
{
	if (has_pairs() && !list_gpus(LOOK_NS))
		make_locks();
}

void migration_leaves(const uint8_t gpu[16])
{
	there_then.count = 0;
	if (has_pairs() && (find(&here, gpu) || !list_gpus(LOOK_NS)))
		there_then = here;
}

static const struct gpu_listed *most_free_like(const struct gpu_listed *gpu)
{
	const struct gpu_listed *best = NULL;

	for (unsigned i = 0; i < here.count; i++)
		if (!unlike(gpu, &here.gpus[i]) && (!best || here.gpus[i].memory.free_bytes > best->memory.free_bytes))
			best = &here.gpus[i];
	return best;
}

enum reason migration_choose(struct device *device, const uint8_t left[16], uint64_t needed)
{
	const struct gpu_listed *then = find(&there_then, left), *now, *best;
	char text[GPU_UUID_TEXT];
	enum reason why = list_gpus(LOOK_NS);

	if (why)
		return why;
	if (!then)
		return REASON_ONLY_WHERE_IT_WAS;
	now = find(&here, device->uuid);
	best = find(&here, left);
	if (!best) {
		best = most_free_like(then);
		if (best && now && !unlike(then, now) && best->memory.free_bytes < needed)
			best = now;
	}
	if (!best)
		return REASON_NO_GPU_LIKE_IT;
	if (best == now)
		return NO_REASON;
	if (gpu_lock_make(best->uuid) != 0)
		return REASON_NO_LOCK_FILE;
	device_is_now(device, best->uuid, gpu_numa_node(best->pci_id));
	make_locks();
	gpu_uuid_text(best->uuid, text);
	log_line("its GPU is not in this machine: it is to come back on %s", text);
	return NO_REASON;
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

enum reason migration_check(const struct device *device, const uint8_t left[16], const uint8_t to[16], uint64_t ns,
			    struct gpu_memory *memory)
{
	const struct gpu_listed *from, *there;
	enum reason why;

	if (spreads(device))
		return REASON_SPREADS;
	why = list_gpus(ns);
	if (why)
		return why;
	there = find(&here, to);
	if (!there)
		return REASON_NVML_NO_OTHER_GPU;
	from = find(&here, left);
	if (from && !migration_is_possible())
		return REASON_NO_OTHER_GPU;
	if (!from)
		from = find(&there_then, left);
	if (!from)
		return REASON_ONLY_WHERE_IT_WAS;
	*memory = there->memory;
	if (!memory->total_bytes)
		return REASON_NVML_NO_OTHER_FIGURES;
	return unlike(from, there);
}

/* Return which GPU the driver is to replace by `gpu`: each is replaced once. The driver knows the GPUs of the machine that the process
 * left. For a GPU that was not there, take the next of those, from *next on, that is not here.  */
static const uint8_t *replaced_by(const uint8_t gpu[16], const uint8_t left[16], const uint8_t to[16], unsigned *next)
{
	if (is_same(gpu, to))
		return left;
	if (is_same(gpu, left))
		return to;
	while (!find(&there_then, gpu) && *next < there_then.count) {
		const uint8_t *other = there_then.gpus[(*next)++].uuid;

		if (!is_same(other, left) && !find(&here, other))
			return other;
	}
	return gpu;
}

void *migration_arguments(const uint8_t left[16], const uint8_t to[16])
{
	unsigned next = 0;

	for (unsigned i = 0; i < here.count; i++) {
		memcpy(pairs[i].from, replaced_by(here.gpus[i].uuid, left, to, &next), sizeof(pairs[i].from));
		memcpy(pairs[i].to, here.gpus[i].uuid, sizeof(pairs[i].to));
	}
	memset(&arguments, 0, sizeof(arguments));
	arguments.pairs = pairs;
	arguments.count = here.count;
	return &arguments;
}

/* On another machine Restore replaces the GPUs of all devices: note those of the other devices, too. Where it exchanges two GPUs of
 * one machine, device_is_now notes both.  */
static void rename_others(const struct device *device)
{
	for (int d = 0; d < device_count_known(); d++)
		for (unsigned i = 0; i < here.count && device_at(d) != device; i++)
			if (is_same(device_at(d)->uuid, pairs[i].from)) {
				device_is_now(device_at(d), pairs[i].to, gpu_numa_node(here.gpus[i].pci_id));
				break;
			}
}

const uint8_t *migration_restored(struct device *device, const uint8_t left[16], const uint8_t to[16])
{
	const struct gpu_listed *there = find(&here, to);
	char before[GPU_UUID_TEXT], now[GPU_UUID_TEXT];

	if (!find(&here, left))
		rename_others(device);
	gpu_uuid_text(left, before);
	gpu_uuid_text(to, now);
	log_line("the context was on %s and is on %s", before, now);
	device_is_now(device, to, there ? gpu_numa_node(there->pci_id) : -1);
	shadow_devices_moved();
	return device->uuid;
}

/* Return whether NVML sees this process on that GPU: it decides where the driver and Restore disagree. In containers NVML may
 * not tell processes apart.  */
static bool is_seen_on(const uint8_t uuid[16])
{
	const struct gpu_listed *gpu = list_gpus(CONFIRM_NS) ? NULL : find(&here, uuid);

	return gpu && gpu->memory.own_bytes;
}

void migration_confirm(struct device *device)
{
	uint8_t now[16];

	if (driver.cuDeviceGetUuid(now, device->ordinal) != CUDA_SUCCESS ||
	    is_same(now, device->uuid) || !find(&here, now))
		return;
	migration_set_possible(false);
	if (is_seen_on(device->uuid)) {
		log_line("the driver names another GPU than the one that NVML sees the process on");
		return;
	}
	log_line("the driver brought the context back on another GPU than it was told");
	migration_restored(device, device->uuid, now);
}
