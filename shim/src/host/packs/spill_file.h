/* A process's chunks on a local disk. They have places, in packs of places (pack.h).
 *
 * Parked contents that leave host memory go to one file that has no name: so it ends with the process, no other user can open it, and none
 * can take its place beforehand. Those of a process that is to become an image go to files in the image's folder, which only its user can
 * enter; what another image of that user has already is not written again.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "host/chunk.h"
#include "host/packs/pack.h"

/* Threads that read or write at a time: what a local disk needs to be at work all the time.  */
#define SPILL_THREADS 8

/* Have what is written from now on go to a file without a name in `folder`, unless there is one with anything in it. Return 0, or a negative errno
 * and `why` in words. Called by the mover alone, as all that has no other word.  */
int spill_open(const char *folder, char *why, size_t size);

/* Have all that is on disk, and what is written from now on, in the image `folder`. Return 0, or a negative errno and `why` in words: then
 * each place has its contents where it had them, or there.  */
int spill_into_image(const char *folder, char *why, size_t size);

/* Take note that the process was woken from an image, perhaps on another machine: its files have other devices and inodes. Called by
 * the link thread, while nothing reads or writes.  */
void spill_found_again(void);

/* Take a free place, if it can be the one after the last taken: neighbours are read together. Return 0 for want of memory, or of
 * the disk.  */
uint32_t spill_take(void);

/* Write a chunk to a place that was taken; its hint is `known` or NULL. Where packs are shared, what is there already is not written: then that
 * place is given back, and `*place` is where it is. Return 0 or a negative errno. Called by any thread.  */
int spill_write(uint32_t *place, const void *from, const struct hint *known);

/* Return whether a place is in host memory (memory_packs.h).  */
bool spill_is_in_memory(uint32_t place);

/* Read `bytes` that begin at a place. Return 0 or a negative errno. Called by any thread.  */
int spill_read(uint32_t place, void *to, size_t bytes);

/* Let other images use what was written to this one.  */
void spill_publish(void);

/* Give the space of an image's places that were given back to the disk, while nothing reads or writes.  */
void spill_tidy(void);

/* Free a place, and give its space back to the disk: that of an image at the next spill_tidy. Called by any thread.  */
void spill_give(uint32_t place);

/* Return the bytes in places on disk that are taken, and all bytes that were ever written there. Called by any thread.  */
uint64_t spill_bytes(void);
uint64_t spill_written_bytes(void);

/* Close the file in the child of a fork: it stays the parent's alone.  */
void spill_close_in_child(void);
