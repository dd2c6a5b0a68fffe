/* The page: one sealed memfd a process, written by the shim, read by the controller. See protocol.h.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol.h"

/* Make the page; 0 or a negative errno. Until then, and in a forked child, writes go to a private one.  */
int page_create(void);

/* A read-only descriptor of it for the controller; the caller closes it. Negative errno.  */
int page_open_read_only(void);

void page_set_state(enum affinode_state state);
void page_set_flags(uint32_t set, uint32_t clear);
/* A move was done; of a park, `copied` bytes were copied and `zeros` needed no copy; of a resume, `copied` came from disk.  */
void page_note_move(bool park, uint64_t bytes, uint64_t duration_ns, uint64_t copied, uint64_t zeros);
void page_set_depth(enum affinode_depth depth);
void page_set_context_bytes(uint64_t bytes);
void page_count_mended(uint64_t chunks);
void page_set_epoch(uint32_t epoch);

/* Sample counters, calls in flight, bytes: by the link thread, often. The sampler writes them; without one nothing is done.  */
void page_sample(void);
void page_set_sampler(void (*now)(void));

/* Write to it in between; a reader sees all of it or nothing.  */
struct affinode_page *page_begin(void);
void page_end(void);

/* A consistent copy; bytes copied.  */
size_t page_copy(void *buffer, size_t size);

void page_begin_again(void);
