/* A block that takes more than one window or part to move, beside those of contents.h, and the moves of it that stream.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "controller.h"
#include "cuda.h"

/* More than a window (streaming_out.c), of zeros but for three chunks: the first, one amidst, the last.  */
#define STREAMED_BIG MiB(288)
/* More than a part.  */
#define STREAMED_SMALLER MiB(96)
#define STREAMED_CHUNK MiB(2)

enum { STREAMED_PLACES = 3 };

extern CUdeviceptr streamed;
extern size_t streamed_bytes;
extern uint32_t streamed_words[STREAMED_PLACES]; /* what those chunks are to hold */
extern size_t streamed_free_bytes;               /* of the GPU, with all of it resident */

/* Where in the block one of those chunks is.  */
size_t streamed_place(unsigned i);
void streamed_allocate(size_t bytes);
/* Change what all blocks hold, and wait for it.  */
void streamed_change(void);
/* Read everything back and compare.  */
void streamed_is_right(void);
/* All of it is there, and no more than that is taken on the GPU.  */
void streamed_is_resident(void);
/* A park up to its being prepared: its epoch.  */
uint32_t streamed_prepare(void);
/* Commit or abort it: the outcome.  */
struct affinode_reply streamed_decide(uint32_t epoch, bool commit);
void streamed_park(void);
/* The reply's status.  */
int streamed_resume(uint64_t how);
/* Resume surely, in one way after the other, and look at all of it.  */
void streamed_come_back(unsigned nth);
