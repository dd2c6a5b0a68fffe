/* The page: one sealed memfd a process, written by the shim, read by the controller. See protocol.h.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol.h"

/* Make the page. Return 0 or a negative errno. Until then, and in a forked child, writes go to a private page.  */
int page_create(void);

/* Return a read-only descriptor of the page for the controller, which the caller closes, or a negative errno.  */
int page_open_read_only(void);

/* Say in the page what the process's state is by now.  */
void page_take_state(void);
void page_set_flags(uint32_t set, uint32_t clear);
/* Note a move that was done. In a park `copied` bytes were copied and `zeros` needed no copy; in a resume `copied` came from disk.  */
void page_note_move(bool park, uint64_t bytes, uint64_t duration_ns, uint64_t copied, uint64_t zeros);
void page_set_depth(enum affinode_depth depth);
/* What the context needs to come back, and on which of the page's GPUs, from 1; 0: it is on its GPU.  */
void page_set_context(uint64_t bytes, uint32_t gpu);
void page_count_mended(uint64_t chunks);
void page_set_epoch(uint32_t epoch);

/* Have the sampler write counters, calls in flight and bytes. Called by the link's thread, often; without a sampler it does nothing.  */
void page_sample(void);
void page_set_sampler(void (*now)(void));

/* Begin and end a change of the page: a reader sees all of it or nothing.  */
struct affinode_page *page_begin(void);
void page_end(void);

/* Copy the page as it was at one moment. Return how many bytes.  */
size_t page_copy(void *buffer, size_t size);

void page_begin_again(void);
