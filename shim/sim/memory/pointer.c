/* cuPointerGetAttribute(s).  */
#include <string.h>

#include "context/context.h"
#include "driver/api.h"
#include "driver/device.h"
#include "memory/ranges.h"
#include "vmm/vmm.h"

enum {
	ATTRIBUTE_CONTEXT = 1,
	ATTRIBUTE_MEMORY_TYPE,
	ATTRIBUTE_DEVICE_POINTER,
	ATTRIBUTE_HOST_POINTER,
	ATTRIBUTE_P2P_TOKENS,
	ATTRIBUTE_SYNC_MEMOPS,
	ATTRIBUTE_BUFFER_ID,
	ATTRIBUTE_IS_MANAGED,
	ATTRIBUTE_DEVICE_ORDINAL,
	ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
	ATTRIBUTE_RANGE_START_ADDR,
	ATTRIBUTE_RANGE_SIZE,
	ATTRIBUTE_MAPPED,
	ATTRIBUTE_ALLOWED_HANDLE_TYPES,
	ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
	ATTRIBUTE_ACCESS_FLAGS,
	ATTRIBUTE_MEMPOOL_HANDLE,
	ATTRIBUTE_MAPPING_SIZE,
	ATTRIBUTE_MAPPING_BASE_ADDR,
	ATTRIBUTE_MEMORY_BLOCK_ID,
	ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE,
};

static bool on_host(const struct range *range)
{
	return range->kind == RANGE_HOST || range->kind == RANGE_REGISTERED;
}

static CUcontext context_of(const struct range *range)
{
	return range->kind == RANGE_MAPPED || range->kind == RANGE_POOL ? NULL : range->context;
}

static bool in_slab(const struct range *range)
{
	return range->kind == RANGE_DEVICE && range->owner;
}

static const struct memory_handle *handle_of(const struct range *range)
{
	return range->owner;
}

#define ANSWER(type, value)                                 \
	do {                                                \
		*(type *)data = (type)(value);              \
		return CUDA_SUCCESS;                        \
	} while (0)

static CUresult answer_place(void *data, int attribute, CUdeviceptr address, const struct range *range)
{
	switch (attribute) {
	case ATTRIBUTE_CONTEXT:
		ANSWER(CUcontext, context_of(range));
	case ATTRIBUTE_MEMORY_TYPE:
		ANSWER(unsigned int, on_host(range) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
	case ATTRIBUTE_DEVICE_POINTER:
		ANSWER(CUdeviceptr, address);
	case ATTRIBUTE_HOST_POINTER:
		if (!on_host(range) && range->kind != RANGE_MANAGED)
			return CUDA_ERROR_INVALID_VALUE;
		ANSWER(uint64_t, address);
	case ATTRIBUTE_DEVICE_ORDINAL:
		ANSWER(int, range->device);
	case ATTRIBUTE_RANGE_START_ADDR:
		ANSWER(CUdeviceptr, range->start);
	case ATTRIBUTE_RANGE_SIZE:
		ANSWER(size_t, range->size);
	case ATTRIBUTE_MAPPING_BASE_ADDR: /* of a small piece: its slab */
		ANSWER(CUdeviceptr, in_slab(range) ? range->start / SIM_GRANULARITY * SIM_GRANULARITY : range->start);
	case ATTRIBUTE_MAPPING_SIZE:
		ANSWER(size_t, in_slab(range) ? SIM_GRANULARITY : range->kind == RANGE_DEVICE ? range->charged : range->size);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult answer(void *data, int attribute, CUdeviceptr address, const struct range *range)
{
	switch (attribute) {
	case ATTRIBUTE_P2P_TOKENS:
		return CUDA_ERROR_NOT_SUPPORTED;
	case ATTRIBUTE_SYNC_MEMOPS:
		ANSWER(int, range->sync_memops_told ? range->sync_memops : range->kind == RANGE_DEVICE);
	case ATTRIBUTE_BUFFER_ID:
		ANSWER(unsigned long long, range->id);
	case ATTRIBUTE_MEMORY_BLOCK_ID:
		ANSWER(unsigned long long, range->kind == RANGE_MAPPED ? handle_of(range)->id : range->id);
	case ATTRIBUTE_IS_MANAGED:
		ANSWER(unsigned char, range->kind == RANGE_MANAGED);
	case ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		ANSWER(unsigned char, range->kind == RANGE_DEVICE);
	case ATTRIBUTE_MAPPED:
		ANSWER(unsigned char, 1);
	case ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		ANSWER(uint64_t, range->kind == RANGE_MAPPED ? (unsigned)handle_of(range)->properties.requestedHandleTypes : 0u);
	case ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		ANSWER(unsigned char, 0);
	case ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: /* this GPU has no engine for it, but the flag is kept */
		ANSWER(unsigned char, range->kind == RANGE_MAPPED &&
					      handle_of(range)->properties.allocFlags.usage & CU_MEM_CREATE_USAGE_HW_DECOMPRESS);
	case ATTRIBUTE_ACCESS_FLAGS:
		ANSWER(int, range->kind == RANGE_MAPPED ? range->access[range->device]
							 : CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	case ATTRIBUTE_MEMPOOL_HANDLE:
		ANSWER(CUmemoryPool, range->kind == RANGE_POOL ? range->owner : NULL);
	default:
		return answer_place(data, attribute, address, range);
	}
}

SIM_API CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address)
{
	struct range *range, *reserved;
	CUresult result;

	ENTER("cuPointerGetAttribute");
	if (!data)
		return CUDA_ERROR_INVALID_VALUE;
	ranges_read();
	range = ranges_find(&memory_ranges, address);
	reserved = range && range->kind == RANGE_MAPPED ? ranges_find(&reserved_ranges, address) : NULL;
	if (reserved && attribute == ATTRIBUTE_RANGE_START_ADDR) {
		*(CUdeviceptr *)data = reserved->start; /* for mapped memory the range is the reservation */
		result = CUDA_SUCCESS;
	} else if (reserved && attribute == ATTRIBUTE_RANGE_SIZE) {
		*(size_t *)data = reserved->size;
		result = CUDA_SUCCESS;
	} else {
		result = range ? answer(data, attribute, address, range) : CUDA_ERROR_INVALID_VALUE;
	}
	ranges_done();
	return result;
}

/* An attribute of this size, for addresses the driver does not know.  */
static size_t attribute_size(int attribute)
{
	switch (attribute) {
	case ATTRIBUTE_MEMORY_TYPE:
	case ATTRIBUTE_SYNC_MEMOPS:
	case ATTRIBUTE_DEVICE_ORDINAL:
	case ATTRIBUTE_ACCESS_FLAGS:
		return 4;
	case ATTRIBUTE_IS_MANAGED:
	case ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
	case ATTRIBUTE_MAPPED:
	case ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
	case ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		return 1;
	default:
		return 8;
	}
}

/* Unlike the single question this one succeeds for unknown addresses, and answers with nulls.  */
SIM_API CUresult cuPointerGetAttributes(unsigned int count, int *attributes, void **data, CUdeviceptr address)
{
	struct range *range;

	ENTER("cuPointerGetAttributes");
	if (!count || !attributes || !data)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++)
		if (attributes[i] < 1 || attributes[i] > ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE || !data[i])
			return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++) {
		memset(data[i], 0, attribute_size(attributes[i]));
		if (attributes[i] == ATTRIBUTE_DEVICE_ORDINAL)
			*(int *)data[i] = -2;
		ranges_read();
		range = ranges_find(&memory_ranges, address);
		if (range)
			answer(data[i], attributes[i], address, range);
		ranges_done();
	}
	return CUDA_SUCCESS;
}

SIM_API CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr address)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct range *range;

	ENTER("cuPointerSetAttribute");
	ranges_write();
	range = ranges_find(&memory_ranges, address);
	if (value && range && attribute == ATTRIBUTE_SYNC_MEMOPS) {
		range->sync_memops = *(const unsigned int *)value != 0;
		range->sync_memops_told = true;
		result = CUDA_SUCCESS;
	}
	ranges_done();
	return result;
}
