#include "mover/streaming/windows.h"

#include <stdlib.h>

/* The number of parts in the first `bytes` of a block.  */
static unsigned parts_in(const struct block *block, size_t bytes)
{
	return bytes >= block->mapped ? block_parts(block) : bytes == 0 ? 0 : (unsigned)(bytes / block->part_bytes);
}

/* In the survey.  */
static size_t number_of(const struct walk *walk)
{
	return walk->back ? walk->survey->block_count - 1 - walk->block : walk->block;
}

bool walk_next(const struct walk *walk, struct piece *part)
{
	const struct survey *survey = walk->survey;
	size_t number = number_of(walk), first;
	unsigned from, to;

	if (walk->block == survey->block_count)
		return false;
	part->block = survey->blocks[number];
	first = survey->items[survey->begins[number]].index;
	from = parts_in(part->block, first * CHUNK_BYTES);
	to = parts_in(part->block, (survey->items[survey->begins[number + 1] - 1].index + 1) * CHUNK_BYTES);
	part->from = walk->back ? to - walk->part - 1 : from + walk->part;
	part->to = part->from + 1;
	first = survey->begins[number] - first;
	part->begin = first + block_part_begins(part->block, part->from) / CHUNK_BYTES;
	part->end = first + (block_part_begins(part->block, part->to) + CHUNK_BYTES - 1) / CHUNK_BYTES;
	return true;
}

void walk_on(struct walk *walk, const struct piece *part)
{
	const size_t *begins = &walk->survey->begins[number_of(walk)];
	bool is_last = walk->back ? part->begin == begins[0] : part->end == begins[1];

	walk->part = is_last ? 0 : walk->part + 1;
	walk->block += is_last;
}

void window_empty(struct window *window)
{
	window->count = window->bytes = 0;
}

static size_t bytes_of(const struct piece *part)
{
	return block_part_begins(part->block, part->to) - block_part_begins(part->block, part->from);
}

bool window_takes(const struct walk *walk, const struct window *window, const struct piece *part)
{
	return window->count == 0 || (window->count < WINDOW_PIECES && part->block->context == window->context &&
				      window->bytes + bytes_of(part) <= walk->most);
}

void window_add(struct walk *walk, struct window *window, const struct piece *part)
{
	struct piece *last = window->count ? &window->pieces[window->count - 1] : NULL;

	window->context = part->block->context;
	window->bytes += bytes_of(part);
	if (last && last->block == part->block && walk->back) {
		last->from = part->from;
		last->begin = part->begin;
	} else if (last && last->block == part->block) {
		last->to = part->to;
		last->end = part->end;
	} else {
		window->pieces[window->count++] = *part;
	}
	walk_on(walk, part);
}

CUresult window_digest(struct survey *survey, const struct window *window)
{
	struct digested **list = malloc((window->bytes / CHUNK_BYTES + window->count) * sizeof(*list));
	CUresult result = CUDA_SUCCESS;
	size_t n = 0;

	if (!list)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < window->count; i++)
		for (size_t at = window->pieces[i].begin; at < window->pieces[i].end; at++)
			if (survey->items[at].digestible)
				list[n++] = &survey->items[at].now;
	if (n)
		result = digest_compute(window->context, list, n);
	free(list);
	return result;
}
