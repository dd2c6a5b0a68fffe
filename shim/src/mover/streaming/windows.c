#include "mover/streaming/windows.h"

#include "base/monotonic_futex.h"

struct part part_of(const struct survey *survey, size_t item)
{
	struct block *block = survey->items[item].block;
	size_t index = survey->items[item].index;
	unsigned number = block_parts(block) == 1 ? 0 : (unsigned)(index * CHUNK_BYTES / block->part_bytes);
	size_t first = block_part_begins(block, number) / CHUNK_BYTES;
	size_t end = (block_part_begins(block, number + 1) + CHUNK_BYTES - 1) / CHUNK_BYTES;

	return (struct part){block, number, item - (index - first), item + (end - index)};
}

bool walk_next(const struct walk *walk, struct part *part)
{
	if (walk->at == (walk->back ? 0 : walk->survey->item_count))
		return false;
	*part = part_of(walk->survey, walk->back ? walk->at - 1 : walk->at);
	return true;
}

void window_empty(const struct walk *walk, struct window *window)
{
	window->begin = window->end = walk->at;
}

bool window_is_empty(const struct window *window)
{
	return window->begin == window->end;
}

bool window_takes(const struct walk *walk, const struct window *window, const struct part *part)
{
	size_t items = window->end - window->begin + part->end - part->begin;

	return window_is_empty(window) || (part->block->context == window->context && items <= walk->most);
}

void window_add(struct walk *walk, struct window *window, const struct part *part)
{
	window->context = part->block->context;
	if (walk->back)
		walk->at = window->begin = part->begin;
	else
		walk->at = window->end = part->end;
}

uint64_t add_since(uint64_t *sum, uint64_t begin_ns)
{
	uint64_t now = clock_ns();

	*sum += now - begin_ns;
	return now;
}
