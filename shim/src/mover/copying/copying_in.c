#include "mover/copying/copying_in.h"

#include <string.h>

#include "base/log.h"
#include "driver/real_driver.h"
#include "mover/copying/copies.h"
#include "state/status_page.h"

/* How often a chunk that came back wrong is copied again before the resume is given up.  */
#define MENDINGS 3

CUresult use_context_of(const struct block *block)
{
	return block->context->handle ? driver.cuCtxSetCurrent(block->context->handle) : CUDA_ERROR_INVALID_VALUE;
}

/* Where the item's contents are; `bytes` are to be filled in.  */
static struct stretch stretch_at(const struct item *item)
{
	const struct chunk *chunk = item_chunk(item);
	struct stretch stretch = {.context = item->block->context, .device = item->now.address};

	if (chunk->kind == CHUNK_SPILLED)
		stretch.place = chunk->place;
	else
		stretch.host = chunk->slot;
	return stretch;
}

static CUresult fill(const struct stretch *stretch, uint8_t kind)
{
	if (kind == CHUNK_ZERO)
		return transfer_zeros(stretch->context, stretch->device, stretch->bytes);
	return transfer_begin(stretch, false);
}

CUresult copy_in_next(struct survey *survey, size_t *at, size_t end)
{
	const struct item *first = &survey->items[*at], *item = first;
	struct stretch stretch = stretch_at(first);
	uint8_t kind = item_chunk(first)->kind;

	while (item < survey->items + end && item->block == first->block && item_chunk(item)->kind == kind &&
	       (kind == CHUNK_ZERO || item == first || item_extends(item, &stretch))) {
		stretch.bytes += item_bytes(item);
		item++;
	}
	*at = (size_t)(item - survey->items);
	return fill(&stretch, kind);
}

static bool is_right(const struct item *item)
{
	const struct chunk *chunk = item_chunk(item);

	if (!chunk->digested || !item->digestible)
		return true;
	if (chunk->kind == CHUNK_ZERO)
		return item->now.zero;
	return memcmp(&item->now.digest, &chunk->digest, sizeof(chunk->digest)) == 0;
}

/* Count what is, and begin to fill it again if that is wished for.  */
static CUresult find_wrong(struct survey *survey, size_t begin, size_t end, bool fill_again, struct wrong *wrong)
{
	CUresult result = CUDA_SUCCESS;

	*wrong = (struct wrong){0};
	for (size_t i = begin; i < end && result == CUDA_SUCCESS; i++) {
		const struct item *item = &survey->items[i];
		struct stretch stretch = stretch_at(item);

		if (is_right(item))
			continue;
		wrong->chunks++;
		wrong->on_disk += item_chunk(item)->kind == CHUNK_SPILLED || item_chunk(item)->was_on_disk;
		stretch.bytes = item_bytes(item);
		if (fill_again)
			result = fill(&stretch, item_chunk(item)->kind);
	}
	return result;
}

CUresult put_right(struct survey *survey, size_t begin, size_t end, struct wrong *wrong)
{
	CUresult result = survey_digest(survey, begin, end);

	for (int attempt = 0; result == CUDA_SUCCESS; attempt++) {
		result = find_wrong(survey, begin, end, attempt < MENDINGS, wrong);
		if (result != CUDA_SUCCESS || wrong->chunks == 0 || attempt == MENDINGS)
			break;
		log_line("%zu chunks came back wrong: copied again", wrong->chunks);
		page_count_mended(wrong->chunks);
		result = survey_finish_transfers(survey);
		if (result == CUDA_SUCCESS)
			result = survey_digest(survey, begin, end);
	}
	return result;
}
