/* What the host has of the GPU's memory, by the survey's last digests, and bringing it what it lacks.  */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "host/slabs.h"
#include "mover/copying/move_plan.h"

/* No chunk needs to be copied: each is zero, as it was at the last park, or as it was before it was copied in this one.  */
bool host_has_all(const struct survey *survey);
bool host_has(const struct survey *survey, size_t begin, size_t end); /* of these items */

/* Slots that the host lacks to copy what is to be copied of these items.  */
size_t slots_needed(const struct survey *survey, size_t begin, size_t end);

/* The slabs that the copies need; *in_all: host memory for everything, what is kept included.  */
struct slab_order slabs_for_copies(const struct survey *survey, uint64_t *in_all);

/* Copy what the host lacks, piece by piece; CUDA_ERROR_NOT_READY: `stop` said so between two pieces. Whether a copy is what
 * the GPU holds is known when it has been digested once more.  */
CUresult copy_all_out(struct survey *survey, bool (*stop)(void), uint64_t *copied);

/* Begin the copies of what the host lacks of a lane.  */
CUresult copy_lane_out(struct survey *survey, struct lane *lane, uint64_t *copied);

/* Keep what is known to be in a chunk: its copy, or that it is zero. What was written to meanwhile stays without. Returns the
 * bytes of zeros.  */
uint64_t settle_items(struct survey *survey, size_t begin, size_t end);
