/* The GPUs as this process numbers them.  */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "driver/cuda_types.h"

#define GPU_UUID_TEXT 48

struct device {
	CUdevice ordinal;
	_Atomic(const uint8_t *) uuid; /* 16 bytes, of the GPU that it is now: context depth may bring it back on another */
	bool can_map;       /* virtual memory management is supported, and the memory is not the host's */
	bool exportable;    /* memory can be given to other processes as a file descriptor */
	bool rdma;          /* backed memory may be made capable of GPUDirect RDMA, as cuMemAlloc's is */
	bool decompresses;  /* it has a decompression engine, which may be given cuMemAlloc's memory */
	size_t granularity;
	size_t total_bytes; /* 0: unknown */
	int numa_node;      /* of the host memory nearest to it; -1: unknown, or there is only one */
	_Atomic uint32_t peers; /* devices (bits) whose contexts were given access to this one's memory */
	_Atomic(CUcontext) primary; /* its primary context, as it was last retained; NULL: never */
};

struct device *device_at(int index);
int device_index(const struct device *device);
int device_count_known(void);
struct device *device_known(CUdevice ordinal);

/* The driver has brought the process back with this device on another GPU. By the mover, the gate closed.  */
void device_is_now(struct device *device, const uint8_t uuid[16], int numa_node);

/* The UUIDs of the first `count` devices, all of one moment.  */
void devices_uuids(const uint8_t *now[], int count);

/* A GPU's UUID as NVML writes it, "GPU-" and hexadecimal digits; reading it, false: it is none.  */
void gpu_uuid_text(const uint8_t uuid[16], char text[GPU_UUID_TEXT]);
bool gpu_uuid_read(const char *text, uint8_t uuid[16]);

/* Of the host memory nearest to the GPU at that place on the PCI bus, from sysfs; -1: unknown, or there is only one.  */
int gpu_numa_node(const char *pci_id);
