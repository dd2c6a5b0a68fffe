#include "gpu/devices.h"

#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/per_process.h"
#include "base/text_file.h"
#include "driver/real_driver.h"
#include "state/shim_state.h"
#include "state/status_page.h"

#define MAX_DEVICES 64
#define MAX_UUIDS 256

static OF_PROCESS pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static struct device devices[MAX_DEVICES];
static OF_PROCESS _Atomic int devices_known;

/* UUIDs are neither changed nor taken out: a thread that read a device's UUID may go on using it.  */
static uint8_t uuids[MAX_UUIDS][16];
static unsigned uuids_known;
static const uint8_t uuid_unknown[16];
static OF_PROCESS _Atomic uint32_t renaming; /* odd while devices get other UUIDs */

/* With the lock held.  */
static const uint8_t *uuid_kept(const uint8_t uuid[16])
{
	for (unsigned i = 0; i < uuids_known; i++)
		if (memcmp(uuids[i], uuid, sizeof(uuids[i])) == 0)
			return uuids[i];
	if (uuids_known == MAX_UUIDS)
		return uuid_unknown;
	memcpy(uuids[uuids_known], uuid, sizeof(uuids[0]));
	return uuids[uuids_known++];
}

int device_count_known(void)
{
	return atomic_load(&devices_known);
}

struct device *device_at(int index)
{
	return &devices[index];
}

int device_index(const struct device *device)
{
	return (int)(device - devices);
}

int gpu_numa_node(const char *pci_id)
{
	char bus[32], path[96], text[16];

	snprintf(bus, sizeof(bus), "%s", pci_id);
	for (char *at = bus; *at; at++)
		*at = (char)tolower((unsigned char)*at);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", bus);
	return text_read(path, text, sizeof(text)) > 0 ? atoi(text) : -1;
}

/* With the lock held.  */
static void device_describe(struct device *device, CUdevice ordinal)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal}};
	char name[256] = "", pci_id[32] = "";
	uint8_t uuid[16] = {0};
	int value = 0;

	device->ordinal = ordinal;
	if (!driver.cuDeviceTotalMem || driver.cuDeviceTotalMem(&device->total_bytes, ordinal) != CUDA_SUCCESS)
		device->total_bytes = 0;
	device->numa_node = driver.cuDeviceGetPCIBusId(pci_id, sizeof(pci_id), ordinal) == CUDA_SUCCESS
				    ? gpu_numa_node(pci_id)
				    : -1;
	driver.cuDeviceGetUuid(uuid, ordinal);
	device->uuid = uuid_kept(uuid);
	if (driver.cuDeviceGetName(name, sizeof(name), ordinal) == CUDA_SUCCESS && strstr(name, "Simulated"))
		page_set_flags(AFFINODE_PAGE_SIMULATED, 0);
	if (driver.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, ordinal) ==
	    CUDA_SUCCESS)
		device->can_map = value != 0;
	value = 0;
	if (driver.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_INTEGRATED, ordinal) == CUDA_SUCCESS && value) {
		device->can_map = false; /* its memory is the host's: parking it would take as much as it frees */
		page_set_flags(AFFINODE_PAGE_INTEGRATED, 0);
	}
	value = 0;
	if (driver.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
					ordinal) == CUDA_SUCCESS)
		device->rdma = value != 0;
	value = 0;
	if (driver.cuMemExportToShareableHandle && driver.cuMemImportFromShareableHandle &&
	    driver.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
					ordinal) == CUDA_SUCCESS)
		device->exportable = value != 0;
	value = 0;
	if (driver.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK, ordinal) == CUDA_SUCCESS)
		device->decompresses = value != 0;
	if (!device->can_map || driver.cuMemGetAllocationGranularity(&device->granularity, &prop,
								      CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS)
		device->can_map = false;
}

static struct device *device_find(CUdevice ordinal)
{
	for (int i = 0; i < device_count_known(); i++)
		if (devices[i].ordinal == ordinal)
			return &devices[i];
	return NULL;
}

struct device *device_known(CUdevice ordinal)
{
	struct device *device = device_find(ordinal);

	if (device)
		return device;
	pthread_mutex_lock(&devices_lock);
	device = device_find(ordinal);
	if (!device && device_count_known() < MAX_DEVICES) {
		device = &devices[device_count_known()];
		memset(device, 0, sizeof(*device));
		device_describe(device, ordinal);
		atomic_fetch_add(&devices_known, 1);
	}
	pthread_mutex_unlock(&devices_lock);
	return device;
}

/* If another device of the process was that GPU until now, it is the GPU that this one was: Restore exchanges the two.  */
void device_is_now(struct device *device, const uint8_t uuid[16], int numa_node)
{
	const uint8_t *before = device->uuid, *now;
	struct device *other = NULL;
	int there = device->numa_node;

	pthread_mutex_lock(&devices_lock);
	now = uuid_kept(uuid);
	for (int i = 0; i < device_count_known(); i++)
		if (&devices[i] != device && devices[i].uuid == now)
			other = &devices[i];
	atomic_fetch_add(&renaming, 1);
	if (other)
		other->uuid = before;
	device->uuid = now;
	atomic_fetch_add(&renaming, 1);
	if (other)
		other->numa_node = there;
	device->numa_node = numa_node;
	pthread_mutex_unlock(&devices_lock);
}

void devices_uuids(const uint8_t *now[], int count)
{
	uint32_t before, after;

	do {
		before = atomic_load(&renaming);
		for (int i = 0; i < count; i++)
			now[i] = devices[i].uuid;
		after = atomic_load(&renaming);
	} while (before != after || before % 2);
}

void gpu_uuid_text(const uint8_t uuid[16], char text[GPU_UUID_TEXT])
{
	int n = snprintf(text, GPU_UUID_TEXT, "GPU-");

	for (int i = 0; i < 16; i++)
		n += snprintf(text + n, GPU_UUID_TEXT - (size_t)n, "%s%02x",
			      i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c = (char)tolower((unsigned char)c);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool gpu_uuid_read(const char *text, uint8_t uuid[16])
{
	if (strncmp(text, "GPU-", 4) != 0)
		return false;
	text += 4;
	for (int i = 0; i < 16; i++) {
		if ((i == 4 || i == 6 || i == 8 || i == 10) && *text++ != '-')
			return false;
		if (digit(text[0]) < 0 || digit(text[1]) < 0)
			return false;
		uuid[i] = (uint8_t)(digit(text[0]) << 4 | digit(text[1]));
		text += 2;
	}
	return *text == '\0';
}
