/* What was asked of the driver once, to be said again while it cannot be asked.  */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/monotonic_futex.h"
#include "base/per_process.h"
#include "context_depth/nvml/nvml_probe.h"
#include "context_depth/shadow/shadow.h"
#include "driver/real_driver.h"
#include "gpu/contexts.h"

/* The user waits for the answer, and without it the call wakes the process.  */
#define LOOK_NS (2 * S_NS)
/* Another thread has the answers for as long as it takes to copy them.  */
#define TURN_NS (500 * MS_NS)
#define TURN_POLL_NS 20000ull
#define MAX_DEVICES 16
#define ATTRIBUTES 256
#define ERRORS 1000
#define POINTER_ATTRIBUTES 32
#define POINTER_BYTES 32
#define MAX_WITNESSES 4

struct device_shadow {
	CUdevice ordinal;
	char name[256], pci_id[64];
	unsigned char uuid[16];
	size_t total_bytes;
	int attributes[ATTRIBUTES];
	CUresult attribute_results[ATTRIBUTES];
};

struct primary_shadow {
	unsigned int flags;
	int active;
	CUresult result;
};

/* What a question about a pointer wrote: `size` bytes.  */
struct pointer_answer {
	CUresult result;
	unsigned size;
	unsigned char bytes[POINTER_BYTES];
};

struct witness_shadow {
	CUdeviceptr address;
	struct pointer_answer one[POINTER_ATTRIBUTES], many[POINTER_ATTRIBUTES];
};

/* What the shim asks the driver anew at each park.  */
struct taken {
	struct primary_shadow primaries[MAX_DEVICES];
	struct witness_shadow witnesses[MAX_WITNESSES];
	unsigned witness_count;
};

/* A call that found the process off the GPU may look only after it came back and left again, so readers and the
 * mover take turns, none for long: a thread that was unwound while it read would keep the others for good.  */
static OF_PROCESS pthread_mutex_t taken_lock = PTHREAD_MUTEX_INITIALIZER;
static struct taken taken;
static struct device_shadow devices[MAX_DEVICES]; /* guarded by it too: the process may come back on another GPU */
static bool devices_moved;                        /* of the mover alone */

static bool taken_turn(void)
{
	uint64_t until = clock_ns() + TURN_NS;

	while (pthread_mutex_trylock(&taken_lock) != 0) {
		if (clock_ns() > until)
			return false;
		clock_sleep_ns(TURN_POLL_NS);
	}
	return true;
}

static int device_count = -1;
static int driver_version;
static const char *error_names[ERRORS], *error_texts[ERRORS];

/* Ask the driver about a device. A call that asks for what this driver lacks waits.  */
static void device_ask(struct device_shadow *shadow, CUdevice ordinal)
{
	memset(shadow, 0, sizeof(*shadow));
	shadow->ordinal = ordinal;
	driver.cuDeviceGetName(shadow->name, sizeof(shadow->name), ordinal);
	driver.cuDeviceGetUuid(shadow->uuid, ordinal);
	if (driver.cuDeviceTotalMem)
		driver.cuDeviceTotalMem(&shadow->total_bytes, ordinal);
	driver.cuDeviceGetPCIBusId(shadow->pci_id, sizeof(shadow->pci_id), ordinal);
	for (int i = 0; i < ATTRIBUTES; i++)
		shadow->attribute_results[i] = driver.cuDeviceGetAttribute(&shadow->attributes[i], i, ordinal);
}

static void errors_start(void)
{
	for (int i = 0; i < ERRORS && driver.cuGetErrorName && driver.cuGetErrorString; i++) {
		if (driver.cuGetErrorName(i, &error_names[i]) != CUDA_SUCCESS)
			error_names[i] = NULL;
		if (driver.cuGetErrorString(i, &error_texts[i]) != CUDA_SUCCESS)
			error_texts[i] = NULL;
	}
}

void shadow_devices_start(void)
{
	int count = 0;

	if (driver.cuDriverGetVersion)
		driver.cuDriverGetVersion(&driver_version);
	errors_start();
	if (driver.cuDeviceGetCount(&count) != CUDA_SUCCESS || count > MAX_DEVICES)
		return;
	for (int i = 0; i < count; i++)
		device_ask(&devices[i], i);
	device_count = count;
}

static CUresult ask(void *data, int attribute, CUdeviceptr address, bool many)
{
	return many ? driver.cuPointerGetAttributes(1, &attribute, &data, address) : driver.cuPointerGetAttribute(data, attribute, address);
}

/* Ask twice over different bytes: the bytes that come out the same were written by the driver.  */
static void answer_take(struct pointer_answer *answer, int attribute, CUdeviceptr address, bool many)
{
	unsigned char again[POINTER_BYTES];

	memset(answer->bytes, 0x5a, sizeof(answer->bytes));
	memset(again, 0xa5, sizeof(again));
	answer->result = ask(answer->bytes, attribute, address, many);
	ask(again, attribute, address, many);
	answer->size = 0;
	while (answer->size < POINTER_BYTES && answer->bytes[answer->size] == again[answer->size])
		answer->size++;
}

static void witness_take(struct taken *now, const struct context *context)
{
	struct witness_shadow *shadow = &now->witnesses[now->witness_count];

	if (!context->handle || !context->witness || now->witness_count == MAX_WITNESSES || !driver.cuPointerGetAttributes ||
	    driver.cuCtxSetCurrent(context->handle) != CUDA_SUCCESS)
		return;
	shadow->address = context->witness;
	for (int i = 1; i < POINTER_ATTRIBUTES; i++) {
		answer_take(&shadow->one[i], i, context->witness, false);
		answer_take(&shadow->many[i], i, context->witness, true);
	}
	now->witness_count++;
}

void shadow_devices_moved(void)
{
	devices_moved = true;
}

int shadow_devices_take(void)
{
	/* too large for a thread's stack; the mover's alone */
	static struct taken now;
	static struct device_shadow moved[MAX_DEVICES];

	now.witness_count = 0;
	for (struct context *context = contexts_first(); context; context = context->next)
		witness_take(&now, context);
	driver.cuCtxSetCurrent(NULL);
	for (int i = 0; i < device_count; i++) {
		struct primary_shadow *primary = &now.primaries[i];

		primary->result = driver.cuDevicePrimaryCtxGetState(i, &primary->flags, &primary->active);
		if (devices_moved)
			device_ask(&moved[i], i);
	}
	if (!taken_turn())
		return -EBUSY;
	taken = now;
	if (devices_moved)
		memcpy(devices, moved, sizeof(devices));
	devices_moved = false;
	pthread_mutex_unlock(&taken_lock);
	return 0;
}

static bool is_known(CUdevice ordinal)
{
	return ordinal >= 0 && ordinal < device_count;
}

static bool look_up(struct device_shadow *shadow, CUdevice ordinal)
{
	if (!is_known(ordinal) || !taken_turn())
		return false;
	*shadow = devices[ordinal];
	pthread_mutex_unlock(&taken_lock);
	return true;
}

CUresult shadow_device_count(int *count)
{
	if (device_count < 0)
		return SHADOW_NONE;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = device_count;
	return CUDA_SUCCESS;
}

CUresult shadow_device_get(CUdevice *device, int ordinal)
{
	if (!is_known(ordinal) || !device)
		return SHADOW_NONE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

CUresult shadow_device_attribute(int *value, int attribute, CUdevice device)
{
	struct device_shadow shadow;

	if (!value || attribute < 0 || attribute >= ATTRIBUTES || !look_up(&shadow, device))
		return SHADOW_NONE;
	if (shadow.attribute_results[attribute] == CUDA_SUCCESS)
		*value = shadow.attributes[attribute];
	return shadow.attribute_results[attribute];
}

static CUresult text(char *out, int size, const char *kept)
{
	if (!out || size <= 0 || !kept[0])
		return SHADOW_NONE;
	snprintf(out, (size_t)size, "%s", kept);
	return CUDA_SUCCESS;
}

CUresult shadow_device_name(char *name, int size, CUdevice device)
{
	struct device_shadow shadow;

	return look_up(&shadow, device) ? text(name, size, shadow.name) : SHADOW_NONE;
}

/* As the driver does, refuse a place that is too small.  */
CUresult shadow_device_pci_id(char *name, int size, CUdevice device)
{
	struct device_shadow shadow;

	return look_up(&shadow, device) && size > (int)strlen(shadow.pci_id) ? text(name, size, shadow.pci_id)
									     : SHADOW_NONE;
}

CUresult shadow_device_uuid(void *uuid, CUdevice device)
{
	struct device_shadow shadow;

	if (!uuid || !look_up(&shadow, device))
		return SHADOW_NONE;
	memcpy(uuid, shadow.uuid, sizeof(shadow.uuid));
	return CUDA_SUCCESS;
}

CUresult shadow_device_total(size_t *bytes, CUdevice device)
{
	struct device_shadow shadow;

	if (!bytes || !look_up(&shadow, device) || !shadow.total_bytes)
		return SHADOW_NONE;
	*bytes = shadow.total_bytes;
	return CUDA_SUCCESS;
}

CUresult shadow_primary_state(CUdevice device, unsigned int *flags, int *active)
{
	struct primary_shadow primary;

	if (!is_known(device) || !flags || !active || !taken_turn())
		return SHADOW_NONE;
	primary = taken.primaries[device];
	pthread_mutex_unlock(&taken_lock);
	*flags = primary.flags;
	*active = primary.active;
	return primary.result;
}

CUresult shadow_driver_version(int *version)
{
	if (!driver_version || !version)
		return SHADOW_NONE;
	*version = driver_version;
	return CUDA_SUCCESS;
}

CUresult shadow_error_text(CUresult error, const char **out, bool name)
{
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = error >= 0 && error < ERRORS ? (name ? error_names[error] : error_texts[error]) : NULL;
	return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult shadow_memory_info(size_t *free_bytes, size_t *total_bytes)
{
	struct device_shadow shadow;
	struct gpu_memory memory;
	struct context *context;
	CUcontext current;

	if (!free_bytes || !total_bytes || !shadows_current(&current))
		return SHADOW_NONE;
	if (!current)
		return CUDA_ERROR_INVALID_CONTEXT;
	context = context_known(current);
	if (!context || !look_up(&shadow, context->device->ordinal) || !shadow.total_bytes ||
	    gpu_memory_ask(context->device->uuid, LOOK_NS, &memory))
		return SHADOW_NONE;
	*total_bytes = shadow.total_bytes;
	*free_bytes = memory.free_bytes < shadow.total_bytes ? memory.free_bytes : shadow.total_bytes;
	return CUDA_SUCCESS;
}

static bool find_answer(struct pointer_answer *answer, int attribute, CUdeviceptr address, bool many)
{
	bool found = false;

	if (!taken_turn())
		return false;
	for (unsigned i = 0; i < taken.witness_count && !found; i++) {
		const struct witness_shadow *shadow = &taken.witnesses[i];

		found = shadow->address == address;
		if (found)
			*answer = many ? shadow->many[attribute] : shadow->one[attribute];
	}
	pthread_mutex_unlock(&taken_lock);
	return found;
}

CUresult shadow_pointer(void *data, int attribute, CUdeviceptr address, bool many)
{
	struct pointer_answer answer;

	if (attribute < 1 || attribute >= POINTER_ATTRIBUTES || !data ||
	    !find_answer(&answer, attribute, address, many))
		return SHADOW_NONE;
	memcpy(data, answer.bytes, answer.size);
	return answer.result;
}
