/* What a move is about: the chunks of all blocks that it moves, by context, and what is in them now.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "host/host_copy.h"
#include "memory/blocks/block.h"
#include "mover/copying/digest.h"

struct item {
	struct digested now;
	struct block *block;
	size_t block_number; /* in the survey */
	size_t index;        /* of the chunk in its block */
	struct digest before; /* when it was copied, if `copied` */
	bool digestible, copied;
};

/* The items of one context: the link to its GPU is used beside those of others.  */
struct lane {
	struct context *context;
	size_t begin, end; /* items */
	size_t at;         /* next to be looked at */
	/* Of a resume: the items before `arrived` are filled and right, and those from there on, before `at`, are on their way.  */
	size_t arrived;
	unsigned mark; /* of their copies */
};

/* A part of a block, and its items.  */
struct part {
	struct block *block;
	unsigned number; /* in the block */
	size_t begin, end;
};

struct survey {
	struct block **blocks; /* sorted by context and address */
	size_t block_count;
	size_t *begins; /* the first item of each block, and after the last one */
	struct item *items;
	size_t item_count;
	struct lane *lanes;
	size_t lane_count;
};

/* Of what can move and has its contents on the GPU, or has not. The caller keeps the blocks from being freed until survey_end.
 * 0, or -ENOMEM.  */
int survey_begin(struct survey *survey, bool on_gpu);
void survey_end(struct survey *survey);

/* The part with that item.  */
struct part part_of(const struct survey *survey, size_t item);

/* Digest those of these items that can be; the others stay `digestible` false.  */
CUresult survey_digest(struct survey *survey, size_t begin, size_t end);

static inline struct chunk *item_chunk(const struct item *item)
{
	return &item->block->copy->chunks[item->index];
}

static inline size_t item_bytes(const struct item *item)
{
	return chunk_size(item->block->copy, item->index);
}

/* The item follows the one before it in the array in the same block.  */
static inline bool item_follows(const struct item *before, const struct item *item)
{
	return item->block == before->block && item->index == before->index + 1;
}

/* Its chunk lies behind the stretch, on the GPU and in its slab, or in the spill file.  */
bool item_extends(const struct item *item, const struct stretch *stretch);

/* Every transfer begun in any lane is done, well or not.  */
CUresult survey_finish_transfers(struct survey *survey);
