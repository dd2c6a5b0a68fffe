/* Small allocations share 2 MiB slabs, cut in units of 512 bytes.  */
#include <stdlib.h>
#include <string.h>

#include "memory/memfile.h"
#include "memory/memory.h"

#define UNIT 512u
#define UNITS (SIM_GRANULARITY / UNIT)

struct slab {
	struct slab *next;
	uint64_t start, offset;
	unsigned used;
	uint8_t taken[UNITS];
};

static struct slab *new_slab(CUcontext context)
{
	struct slab *slab = calloc(1, sizeof(*slab));

	if (!slab)
		return NULL;
	slab->offset = MEMFILE_NONE;
	if (!machine_charge(context->gpu, SIM_GRANULARITY))
		goto no_room;
	slab->offset = memfile_take(SIM_GRANULARITY);
	slab->start = slab->offset == MEMFILE_NONE ? 0 : address_reserve(SIM_GRANULARITY, SIM_GRANULARITY, 0);
	if (!slab->start || address_map(slab->start, SIM_GRANULARITY, memfile_fd(), slab->offset))
		goto no_memory;
	slab->next = context->slabs;
	context->slabs = slab;
	return slab;
no_memory:
	if (slab->start)
		address_release(slab->start, SIM_GRANULARITY);
	machine_refund(context->gpu, SIM_GRANULARITY);
no_room:
	free(slab);
	return NULL;
}

static void free_slab(CUcontext context, struct slab *slab)
{
	struct slab **link = &context->slabs;

	while (*link != slab)
		link = &(*link)->next;
	*link = slab->next;
	address_release(slab->start, SIM_GRANULARITY);
	memfile_drop(slab->offset, SIM_GRANULARITY);
	machine_refund(context->gpu, SIM_GRANULARITY);
	free(slab);
}

/* First run of free units that is long enough; UNITS if there is none.  */
static unsigned find_run(const struct slab *slab, unsigned length)
{
	unsigned run = 0;

	if (slab->used + length > UNITS)
		return UNITS;
	for (unsigned i = 0; i < UNITS; i++) {
		run = slab->taken[i] ? 0 : run + 1;
		if (run == length)
			return i + 1 - length;
	}
	return UNITS;
}

CUresult slab_take(CUcontext current, uint64_t size, CUdeviceptr *address)
{
	unsigned length = (unsigned)((size + UNIT - 1) / UNIT), at = UNITS;
	CUcontext context = context_home(current);
	struct range range = {.size = size, .kind = RANGE_DEVICE, .device = context->device, .context = context,
			      .on_device = true};
	struct slab *slab;

	for (slab = context->slabs; slab; slab = slab->next) {
		at = find_run(slab, length);
		if (at < UNITS)
			break;
	}
	if (!slab) {
		slab = new_slab(context);
		if (!slab)
			return CUDA_ERROR_OUT_OF_MEMORY;
		at = 0;
	}
	range.start = slab->start + at * UNIT;
	range.owner = slab;
	range.file_offset = slab->offset + at * UNIT;
	if (!ranges_add(&memory_ranges, &range))
		return CUDA_ERROR_OUT_OF_MEMORY;
	memset(slab->taken + at, 1, length);
	slab->used += length;
	*address = range.start;
	return CUDA_SUCCESS;
}

void slab_drop(CUcontext context, struct range *range)
{
	struct slab *slab = range->owner;
	unsigned length = (unsigned)((range->size + UNIT - 1) / UNIT);

	memset(slab->taken + (range->start - slab->start) / UNIT, 0, length);
	slab->used -= length;
	ranges_remove(&memory_ranges, range->start);
	if (!slab->used)
		free_slab(context, slab);
}

void slabs_release(CUcontext context)
{
	while (context->slabs)
		free_slab(context, context->slabs);
}
