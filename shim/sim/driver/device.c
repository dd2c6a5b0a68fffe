/* Devices: count, name, UUID, memory, attributes.  */
#include "driver/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "driver/api.h"
#include "machine/machine.h"
#include "machine/settings.h"

static unsigned visible[SIM_MAX_GPUS];
static unsigned visible_count;

/* "1" or "GPU-53494d…" (any unambiguous beginning), as the driver reads it; -1 ends the list.  */
static int gpu_named(const char *name)
{
	unsigned count = machine()->gpu_count;
	char text[41], *end;
	long number;

	if (!strncasecmp(name, "GPU-", 4)) {
		for (unsigned gpu = 0; gpu < count; gpu++) {
			machine_uuid_text(gpu, text);
			if (!strncasecmp(text, name, strlen(name)))
				return (int)gpu;
		}
		return -1;
	}
	number = strtol(name, &end, 10);
	return end != name && !*end && number >= 0 && number < (long)count ? (int)number : -1;
}

CUresult device_discover(void)
{
	const char *given = getenv("CUDA_VISIBLE_DEVICES");
	char *text, *rest, *name;

	visible_count = 0;
	if (!given) {
		for (unsigned gpu = 0; gpu < machine()->gpu_count; gpu++)
			visible[visible_count++] = gpu;
	} else {
		rest = text = strdup(given);
		while (rest && (name = strsep(&rest, ",")) && visible_count < SIM_MAX_GPUS) {
			int gpu = gpu_named(name);

			if (gpu < 0) /* what follows a wrong name is not seen either */
				break;
			visible[visible_count++] = (unsigned)gpu;
		}
		free(text);
	}
	return visible_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

bool device_valid(CUdevice device)
{
	return device >= 0 && (unsigned)device < visible_count;
}

unsigned device_gpu(CUdevice device)
{
	return visible[device];
}

void devices_move(const uint8_t *destination)
{
	for (unsigned i = 0; i < visible_count; i++)
		visible[i] = destination[visible[i]];
}

SIM_API CUresult cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = SIM_DRIVER_VERSION;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetCount(int *count)
{
	ENTER("cuDeviceGetCount");
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = (int)visible_count;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	ENTER("cuDeviceGet");
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
	ENTER("cuDeviceGetName");
	if (!name || size <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(name, (size_t)size, "%s", SIM_DEVICE_NAME);
	return CUDA_SUCCESS;
}

static CUresult get_uuid(CUuuid *uuid, CUdevice device)
{
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	memcpy(uuid->bytes, machine()->gpus[device_gpu(device)].uuid, sizeof(uuid->bytes));
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	ENTER("cuDeviceGetUuid");
	return get_uuid(uuid, device);
}

SIM_API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	ENTER("cuDeviceGetUuid");
	return get_uuid(uuid, device);
}

SIM_API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	ENTER("cuDeviceTotalMem");
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*bytes = machine()->gpus[device_gpu(device)].total_bytes;
	return CUDA_SUCCESS;
}

/* The simulated bus: GPU n is device 0 on bus n + 1 of domain 0, in NVML too.  */
SIM_API CUresult cuDeviceGetPCIBusId(char *text, int size, CUdevice device)
{
	ENTER("cuDeviceGetPCIBusId");
	if (!text || size <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(text, (size_t)size, "0000:%02x:00.0", device_gpu(device) + 1);
	return CUDA_SUCCESS;
}

/* An H200's answers to what is asked for here, 0 to all else. CU_DEVICE_ATTRIBUTE_* by number.  */
static const int attributes[] = {
	[75] = 9, /* compute capability */
	[CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS] = 1,
	[CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 1,
	[CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED] = 1,
	[147] = 0, /* the last that is known */
};

SIM_API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	ENTER("cuDeviceGetAttribute");
	if (!value || attribute < 1)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if ((unsigned)attribute >= sizeof(attributes) / sizeof(*attributes))
		return CUDA_ERROR_INVALID_VALUE; /* a newer header's */
	*value = attribute == CU_DEVICE_ATTRIBUTE_INTEGRATED ? settings()->is_integrated : attributes[attribute];
	return CUDA_SUCCESS;
}
