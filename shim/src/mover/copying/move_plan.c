#include "mover/copying/move_plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "driver/real_driver.h"
#include "mover/copying/copies.h"

static int by_context_and_address(const void *a, const void *b)
{
	const struct block *one = *(struct block *const *)a, *other = *(struct block *const *)b;

	if (one->context != other->context)
		return one->context < other->context ? -1 : 1;
	return one->address < other->address ? -1 : one->address > other->address;
}

/* Chunks that have their contents on the GPU: the first ones.  */
static size_t chunks_on_gpu(const struct block *block)
{
	size_t bytes = block->resident && !block->hollow ? block->mapped : block_part_begins(block, block->parts_left);

	return (bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
}

static size_t chunks(const struct block *block)
{
	return (block->mapped + CHUNK_BYTES - 1) / CHUNK_BYTES;
}

static size_t keep_those(struct block **blocks, size_t count, bool on_gpu)
{
	size_t kept = 0;

	for (size_t i = 0; i < count; i++)
		if (on_gpu ? chunks_on_gpu(blocks[i]) > 0 : chunks_on_gpu(blocks[i]) < chunks(blocks[i]))
			blocks[kept++] = blocks[i];
	return kept;
}

static int ensure_copies(struct survey *survey, bool on_gpu)
{
	for (size_t i = 0; i < survey->block_count; i++) {
		struct block *block = survey->blocks[i];

		if (!block->copy)
			block->copy = copy_new(block->mapped);
		if (!block->copy)
			return -ENOMEM;
		survey->item_count += on_gpu ? chunks_on_gpu(block) : chunks(block) - chunks_on_gpu(block);
		survey->lane_count += i == 0 || survey->blocks[i - 1]->context != block->context;
	}
	return 0;
}

static void fill(struct survey *survey, bool on_gpu)
{
	struct item *item = survey->items;
	struct lane *lane = survey->lanes;

	for (size_t i = 0; i < survey->block_count; i++) {
		struct block *block = survey->blocks[i];
		size_t end = on_gpu ? chunks_on_gpu(block) : chunks(block);

		if (i == 0 || survey->blocks[i - 1]->context != block->context) {
			lane += i > 0;
			lane->context = block->context;
			lane->begin = lane->at = lane->arrived = (size_t)(item - survey->items);
		}
		survey->begins[i] = (size_t)(item - survey->items);
		for (size_t chunk = on_gpu ? 0 : chunks_on_gpu(block); chunk < end; chunk++, item++) {
			item->block = block;
			item->block_number = i;
			item->index = chunk;
			item->now.address = block->address + chunk * CHUNK_BYTES;
			item->digestible = block->context->digester && item_bytes(item) == CHUNK_BYTES;
		}
		lane->end = (size_t)(item - survey->items);
	}
	survey->begins[survey->block_count] = survey->item_count;
}

int survey_begin(struct survey *survey, bool on_gpu)
{
	size_t count;

	memset(survey, 0, sizeof(*survey));
	survey->blocks = blocks_list(&count);
	if (!survey->blocks)
		return -ENOMEM;
	survey->block_count = keep_those(survey->blocks, count, on_gpu);
	qsort(survey->blocks, survey->block_count, sizeof(struct block *), by_context_and_address);
	if (ensure_copies(survey, on_gpu) != 0)
		return -ENOMEM;
	survey->items = calloc(survey->item_count + 1, sizeof(*survey->items));
	survey->lanes = calloc(survey->lane_count + 1, sizeof(*survey->lanes));
	survey->begins = calloc(survey->block_count + 1, sizeof(*survey->begins));
	if (!survey->items || !survey->lanes || !survey->begins)
		return -ENOMEM;
	fill(survey, on_gpu);
	return 0;
}

void survey_end(struct survey *survey)
{
	free(survey->blocks);
	free(survey->items);
	free(survey->lanes);
	free(survey->begins);
	memset(survey, 0, sizeof(*survey));
}

struct part part_of(const struct survey *survey, size_t item)
{
	struct block *block = survey->items[item].block;
	size_t index = survey->items[item].index;
	unsigned number = block_parts(block) == 1 ? 0 : (unsigned)(index * CHUNK_BYTES / block->part_bytes);
	size_t first = block_part_begins(block, number) / CHUNK_BYTES;
	size_t end = (block_part_begins(block, number + 1) + CHUNK_BYTES - 1) / CHUNK_BYTES;

	return (struct part){block, number, item - (index - first), item + (end - index)};
}

CUresult survey_digest(struct survey *survey, size_t begin, size_t end)
{
	struct digested **list = malloc((end - begin + 1) * sizeof(*list));
	CUresult result = CUDA_SUCCESS;

	if (!list)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < survey->lane_count && result == CUDA_SUCCESS; i++) {
		const struct lane *lane = &survey->lanes[i];
		size_t n = 0;

		for (size_t at = begin > lane->begin ? begin : lane->begin; at < end && at < lane->end; at++)
			if (survey->items[at].digestible)
				list[n++] = &survey->items[at].now;
		if (n)
			result = digest_compute(lane->context, list, n);
	}
	free(list);
	return result;
}

bool item_extends(const struct item *item, const struct stretch *stretch)
{
	const struct chunk *chunk = item_chunk(item);

	if (stretch->place)
		return chunk->place == stretch->place + stretch->bytes / CHUNK_BYTES;
	return item->now.address == stretch->device + stretch->bytes && chunk->slot.slab == stretch->host.slab &&
	       chunk->slot.index * CHUNK_BYTES == stretch->host.index * CHUNK_BYTES + stretch->bytes;
}

CUresult survey_finish_transfers(struct survey *survey)
{
	CUresult result = CUDA_SUCCESS;

	for (size_t i = 0; i < survey->lane_count; i++) {
		CUresult lane = transfers_finish(survey->lanes[i].context);

		result = result == CUDA_SUCCESS ? lane : result;
	}
	return result;
}
