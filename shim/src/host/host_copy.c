#include "host/host_copy.h"

#include <stdlib.h>

#include "host/packs/spill_file.h"

struct copy *copy_new(size_t bytes)
{
	size_t count = (bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
	struct copy *copy = calloc(1, sizeof(*copy) + count * sizeof(copy->chunks[0]));

	if (copy) {
		copy->bytes = bytes;
		copy->count = count;
	}
	return copy;
}

void chunk_drop(struct chunk *chunk)
{
	if (chunk_has_slot(chunk))
		slot_give(&chunk->slot);
	if (chunk->kind == CHUNK_SPILLED)
		spill_give(chunk->place);
	chunk->kind = CHUNK_NONE;
	chunk->digested = chunk->was_on_disk = false;
}

bool chunk_is_on_disk(const struct chunk *chunk)
{
	return chunk->kind == CHUNK_SPILLED && !spill_is_in_memory(chunk->place);
}

bool chunk_takes_memory(const struct chunk *chunk)
{
	return chunk_has_slot(chunk) || (chunk->kind == CHUNK_SPILLED && spill_is_in_memory(chunk->place));
}

void chunk_to_place(struct chunk *chunk, uint32_t place)
{
	if (chunk->kind == CHUNK_SPILLED)
		spill_give(chunk->place);
	else
		slot_give(&chunk->slot);
	chunk->kind = CHUNK_SPILLED;
	chunk->place = place;
}

void chunk_from_disk(struct chunk *chunk, const struct host_slot *slot)
{
	spill_give(chunk->place);
	chunk->kind = CHUNK_HELD;
	chunk->slot = *slot;
	chunk->was_on_disk = true;
}

void copy_drop(struct copy *copy)
{
	for (size_t i = 0; copy && i < copy->count; i++)
		chunk_drop(&copy->chunks[i]);
	free(copy);
}

void copies_drop(struct copy *list)
{
	while (list) {
		struct copy *copy = list;

		list = copy->next;
		copy_drop(copy);
	}
}

void copy_take(struct copy **copy, struct copy **list, uint64_t *bytes)
{
	uint64_t slots = 0;

	for (size_t i = 0; *copy && i < (*copy)->count; i++)
		slots += chunk_has_slot(&(*copy)->chunks[i]);
	if (slots == 0)
		return;
	(*copy)->next = *list;
	*list = *copy;
	*copy = NULL;
	*bytes += slots * CHUNK_BYTES;
}
