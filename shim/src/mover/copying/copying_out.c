#include "mover/copying/copying_out.h"

#include <string.h>

#include "mover/copying/copies.h"

static bool is_unchanged(const struct item *item)
{
	const struct chunk *chunk = item_chunk(item);

	return item->digestible && (chunk->kind == CHUNK_HELD || chunk->kind == CHUNK_SPILLED) && chunk->digested &&
	       memcmp(&chunk->digest, &item->now.digest, sizeof(chunk->digest)) == 0;
}

static bool is_on_disk(const struct item *item)
{
	return item_chunk(item)->kind == CHUNK_SPILLED && is_unchanged(item);
}

static bool is_zero(const struct item *item)
{
	return item->digestible && item->now.zero;
}

/* It was copied, and is what it was before that.  */
static bool is_copied(const struct item *item)
{
	return item->copied && (!item->digestible || memcmp(&item->before, &item->now.digest, sizeof(item->before)) == 0);
}

static bool needs_copy(const struct item *item)
{
	return !is_zero(item) && !is_unchanged(item) && !is_copied(item);
}

bool host_has(const struct survey *survey, size_t begin, size_t end)
{
	for (size_t i = begin; i < end; i++)
		if (needs_copy(&survey->items[i]))
			return false;
	return true;
}

bool host_has_all(const struct survey *survey)
{
	return host_has(survey, 0, survey->item_count);
}

/* Slots for this item and those after it that lie side by side and lack one too.  */
static CUresult give_slots(struct item *item, const struct item *end)
{
	size_t want = 1;
	struct host_slot slot;
	size_t got;

	while (item + want < end && item_follows(item + want - 1, item + want) && needs_copy(item + want) &&
	       !chunk_has_slot(item_chunk(item + want)))
		want++;
	got = slots_take(want, &slot);
	if (got == 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < got; i++, slot.index++) {
		struct chunk *chunk = item_chunk(item + i);

		chunk_drop(chunk); /* what is on disk of it is old */
		chunk->slot = slot;
		chunk->kind = CHUNK_STALE;
	}
	return CUDA_SUCCESS;
}

/* Begin the lane's next copy.  */
static CUresult copy_out_next(struct survey *survey, struct lane *lane, uint64_t *copied)
{
	struct stretch stretch = {.context = lane->context};
	struct item *item, *end = survey->items + lane->end;
	CUresult result;

	for (; lane->at < lane->end; lane->at++) {
		item = &survey->items[lane->at];
		if (!needs_copy(item)) {
			if (stretch.bytes)
				break;
			continue;
		}
		if (!chunk_has_slot(item_chunk(item))) {
			if (stretch.bytes)
				break;
			result = give_slots(item, end);
			if (result != CUDA_SUCCESS)
				return result;
		}
		if (stretch.bytes && !item_extends(item, &stretch))
			break;
		if (!stretch.bytes) {
			stretch.device = item->now.address;
			stretch.host = item_chunk(item)->slot;
		}
		item_chunk(item)->kind = CHUNK_STALE; /* until it is known to be what the GPU holds */
		item->before = item->now.digest;
		item->copied = true;
		stretch.bytes += item_bytes(item);
	}
	*copied += stretch.bytes;
	return transfer_begin(&stretch, true);
}

CUresult copy_lane_out(struct survey *survey, struct lane *lane, uint64_t *copied)
{
	CUresult result = CUDA_SUCCESS;

	while (lane->at < lane->end && result == CUDA_SUCCESS)
		result = copy_out_next(survey, lane, copied);
	return result;
}

CUresult copy_all_out(struct survey *survey, bool (*stop)(void), uint64_t *copied)
{
	CUresult result = CUDA_SUCCESS, finished;
	size_t open = survey->lane_count;

	while (open && result == CUDA_SUCCESS) {
		open = 0;
		for (size_t i = 0; i < survey->lane_count && result == CUDA_SUCCESS; i++) {
			struct lane *lane = &survey->lanes[i];

			if (lane->at < lane->end)
				result = stop() ? CUDA_ERROR_NOT_READY : copy_out_next(survey, lane, copied);
			open += lane->at < lane->end;
		}
	}
	finished = survey_finish_transfers(survey);
	return result == CUDA_SUCCESS ? finished : result;
}

size_t slots_needed(const struct survey *survey, size_t begin, size_t end)
{
	size_t n = 0;

	for (size_t i = begin; i < end; i++)
		n += needs_copy(&survey->items[i]) && !chunk_has_slot(item_chunk(&survey->items[i]));
	return n;
}

struct slab_order slabs_for_copies(const struct survey *survey, uint64_t *in_all)
{
	struct slab_order order = {.node = -1, .slots = slots_needed(survey, 0, survey->item_count)};

	*in_all = 0;
	for (size_t i = 0; i < survey->item_count; i++)
		*in_all += is_zero(&survey->items[i]) || is_on_disk(&survey->items[i]) ? 0 : CHUNK_BYTES;
	order.at_least = order.slots;
	if (survey->lane_count) {
		order.context = survey->lanes[0].context->handle;
		order.node = survey->lanes[0].context->device->numa_node;
	}
	return order;
}

uint64_t settle_items(struct survey *survey, size_t begin, size_t end)
{
	uint64_t zeros = 0;

	for (size_t i = begin; i < end; i++) {
		struct item *item = &survey->items[i];
		struct chunk *chunk = item_chunk(item);

		if (needs_copy(item))
			continue;
		if (is_zero(item)) {
			chunk_drop(chunk);
			chunk->kind = CHUNK_ZERO;
			zeros += CHUNK_BYTES;
		} else if (chunk->kind != CHUNK_SPILLED) {
			chunk->kind = CHUNK_HELD;
			chunk->was_on_disk = false;
		}
		chunk->digest = item->now.digest;
		chunk->digested = item->digestible;
	}
	return zeros;
}
