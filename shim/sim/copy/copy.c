/* Carrying out copies and fills, a piece at a time: the table of ranges is held for each piece, so that memory may be
 * unmapped under a running copy and the copy finds out, as a GPU would.  */
#include "copy/copy.h"

#include <stdlib.h>
#include <string.h>

#include "stream/capture.h"
#include "machine/activity.h"
#include "vmm/vmm.h"

#define PIECE (4ull << 20)
#define STAGED_LARGEST (1u << 20) /* a pageable source up to here is read at once; seen on an H200 with 1 MiB */

/* Whether a copy may touch it: as for a kernel, but other GPUs' plain memory needs no peer access.  */
static bool reachable(CUcontext context, uint64_t address, uint64_t size, bool write)
{
	uint64_t end = address + size;

	if (end < address)
		return false;
	while (address < end) {
		struct range *range = ranges_find(&memory_ranges, address);

		if (!range)
			return false;
		if (range->kind == RANGE_MAPPED && !ranges_accessible(context, address, 1, write))
			return false;
		address = range->start + range->size;
	}
	return true;
}

static bool on_device(const struct side *side)
{
	struct range *range = ranges_find(&memory_ranges, side->address);

	return range && range->kind != RANGE_HOST && range->kind != RANGE_REGISTERED;
}

CUresult side_locate(struct side *side, bool device, uint64_t size)
{
	CUresult result = CUDA_SUCCESS;
	struct range *range;

	ranges_read();
	range = ranges_find(&memory_ranges, side->address);
	side->table = device || range != NULL;
	if (!device && range && (range->kind == RANGE_HOST || range->kind == RANGE_REGISTERED))
		side->table = range->start + range->size >= side->address + size; /* else it is partly pageable */
	if (side->table && !reachable(side->context, side->address, size, false))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!device && !range && ranges_find(&reserved_ranges, side->address))
		result = CUDA_ERROR_INVALID_VALUE;
	ranges_done();
	return result;
}

bool side_straddles(uint64_t address, uint64_t size)
{
	uint64_t end = address + size;
	struct range *range;
	bool pinned;

	ranges_read();
	range = ranges_from(&memory_ranges, address);
	pinned = range && (range->kind == RANGE_HOST || range->kind == RANGE_REGISTERED) && range->start < end;
	pinned = pinned && (range->start > address || range->start + range->size < end);
	ranges_done();
	return pinned;
}

static CUresult copy_pieces(const struct copy *copy, uint64_t from, unsigned gpu, int direction)
{
	uint64_t to = copy->to.address;

	for (uint64_t done = 0; done < copy->size;) {
		uint64_t piece = copy->size - done < PIECE ? copy->size - done : PIECE;
		bool valid;

		ranges_read();
		valid = (!copy->to.table || reachable(copy->to.context, to + done, piece, true)) &&
			(!copy->from.table || reachable(copy->from.context, from + done, piece, false));
		if (valid && copy->from.table && vmm_is_blank(from + done, piece))
			memset((void *)(to + done), 0, piece);
		else if (valid)
			memmove((void *)(to + done), (const void *)(from + done), piece);
		ranges_done();
		if (!valid)
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		if (direction >= 0)
			activity_throttle(gpu, (enum sim_direction)direction, piece);
		done += piece;
	}
	return CUDA_SUCCESS;
}

/* One wrong bit in the middle.  */
static CUresult corrupt(const struct side *to, uint64_t size)
{
	uint64_t at = to->address + size / 2;
	bool valid;

	ranges_read();
	valid = !to->table || reachable(to->context, at, 1, true);
	if (valid)
		*(uint8_t *)at ^= 0x10;
	ranges_done();
	return valid ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult run_copy(struct operation *operation, CUstream stream)
{
	struct copy *copy = (struct copy *)operation;
	uint64_t from = copy->staged ? (uint64_t)copy->staged : copy->from.address;
	unsigned gpu = stream->context->gpu;
	bool to_device, from_device;
	CUresult result;
	int direction;

	ranges_read();
	to_device = copy->to.table && on_device(&copy->to);
	from_device = !copy->staged && copy->from.table && on_device(&copy->from);
	ranges_done();
	direction = to_device == from_device ? -1 : to_device ? SIM_TO_DEVICE : SIM_TO_HOST;
	activity_begin(gpu, SIM_COPIES);
	result = copy_pieces(copy, from, gpu, direction);
	if (result == CUDA_SUCCESS && operation->fault == FAULT_CORRUPT)
		result = corrupt(&copy->to, copy->size);
	activity_end(gpu, SIM_COPIES);
	return result;
}

static void drop_copy(struct operation *operation)
{
	free(((struct copy *)operation)->staged);
}

static struct operation *copy_operation_new(const struct copy *shape)
{
	struct copy *copy = operation_new(sizeof(*copy), run_copy);

	if (!copy)
		return NULL;
	*copy = *shape;
	copy->operation = (struct operation){.run = run_copy, .drop = drop_copy, .bytes = shape->size};
	return &copy->operation;
}

/* A small pageable source is read now; its owner may change it as soon as we return.  */
static bool stage(struct copy *copy)
{
	if (copy->from.table || copy->size > STAGED_LARGEST)
		return false;
	copy->staged = malloc(copy->size);
	if (copy->staged) {
		memcpy(copy->staged, (const void *)copy->from.address, copy->size);
		copy->from.table = false;
	}
	return copy->staged != NULL;
}

CUresult copy_submit(CUstream stream, const struct copy *shape, bool wait)
{
	struct operation *operation;
	bool pageable = !shape->to.table || !shape->from.table;

	operation = copy_operation_new(shape);
	if (!operation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!wait && pageable && !capture_active(stream))
		wait = !shape->to.table || !stage((struct copy *)operation);
	if (wait && shape->to.table && shape->from.table) {
		bool between_devices;

		ranges_read(); /* a copy inside the GPU is not waited for */
		between_devices = on_device(&shape->to) && on_device(&shape->from);
		ranges_done();
		wait = !between_devices;
	}
	return wait ? stream_submit_and_wait(stream, operation) : stream_submit(stream, operation, NULL);
}

static void fill_piece(uint64_t address, uint64_t count, unsigned value, unsigned size)
{
	if (size == 1)
		memset((void *)address, (int)(value & 0xff), count);
	else if (size == 2)
		for (uint64_t i = 0; i < count; i++)
			((uint16_t *)address)[i] = (uint16_t)value;
	else
		for (uint64_t i = 0; i < count; i++)
			((uint32_t *)address)[i] = value;
}

static CUresult run_fill(struct operation *operation, CUstream stream)
{
	const struct fill *what = (struct fill *)operation;
	uint64_t per_piece = PIECE / what->element;

	for (uint64_t done = 0; done < what->count;) {
		uint64_t count = what->count - done < per_piece ? what->count - done : per_piece;
		uint64_t at = what->to + done * what->element;
		bool valid;

		ranges_read();
		valid = ranges_accessible(stream->context, at, count * what->element, true);
		if (valid && (what->value || !vmm_is_blank(at, count * what->element)))
			fill_piece(at, count, what->value, what->element);
		ranges_done();
		if (!valid)
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		done += count;
	}
	if (operation->fault == FAULT_CORRUPT) {
		struct side to = {.address = what->to, .context = stream->context, .table = true};

		return corrupt(&to, what->count * what->element);
	}
	return CUDA_SUCCESS;
}

CUresult fill_submit(CUstream stream, const struct fill *what)
{
	struct fill *fill = operation_new(sizeof(*fill), run_fill);

	if (!fill)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*fill = *what;
	fill->operation = (struct operation){.run = run_fill, .bytes = what->count * what->element,
					     .kernels = true /* the driver fills with a kernel of its own */};
	return stream_submit(stream, &fill->operation, NULL);
}
