/* The process's file on a local disk for parked contents that leave host memory. It has places of one chunk each.
 *
 * It has no name: so it ends with the process, no other user can open it, and none can take its place beforehand. A process that
 * is to become an image has it under a name, in a folder that only its user can enter.  */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "host/chunk.h"

/* Threads that read or write at a time: what a local disk needs to be at work all the time.  */
#define SPILL_THREADS 8

/* Open a file in `folder`, unless the process has one with anything in it. Return 0, or a negative errno and `why` in words. Called by
 * the mover alone.  */
int spill_open(const char *folder, char *why, size_t size);

/* Make the file that of the name `path`, with all that is in it now. Return 0, or a negative errno and `why` in words: then nothing has
 * changed. Called by the mover alone.  */
int spill_name(const char *path, char *why, size_t size);

/* Take note that the process was woken from an image, perhaps on another machine: its open file has another device and inode. Called by
 * the link thread, while nothing reads or writes.  */
void spill_found_again(void);

/* Take a free place, if it can be the one after the last taken: neighbours are read together. Return 0 for want of memory.
 * Called by the mover alone.  */
uint32_t spill_take(void);

/* Write a chunk to its place, or read `bytes` that begin at a place. Return 0 or a negative errno. Called by any thread.  */
int spill_write(uint32_t place, const void *from);
int spill_read(uint32_t place, void *to, size_t bytes);

/* Free a place, and give its space back to the disk. Called by any thread.  */
void spill_give(uint32_t place);

/* Return the bytes in places that are taken, and all bytes that were ever written. Called by any thread.  */
uint64_t spill_bytes(void);
uint64_t spill_written_bytes(void);

/* Close the file in the child of a fork: it stays the parent's alone.  */
void spill_close_in_child(void);
