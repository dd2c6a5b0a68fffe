/* A file of this process's own on the local disk, for parked contents that are to leave host memory: places of one chunk each. It
 * has no name, so that it ends with the process, no other user can open it, and none can take its place beforehand. A process that
 * is to become an image has it under a name, in a folder that only its user can enter.  */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "host/chunk.h"

/* Threads that read or write at a time: what a local disk needs to be at work all the time.  */
#define SPILL_THREADS 8

/* Have a file in `folder`; the one that is there already stays while anything is in it. 0, or a negative errno and `why` in
 * words. By the mover alone.  */
int spill_open(const char *folder, char *why, size_t size);

/* Have it be the file of that name, with all that is in it now. 0, or a negative errno and `why` in words: then it is as before. By
 * the mover alone.  */
int spill_name(const char *path, char *why, size_t size);

/* The process was woken from an image, perhaps on another machine: the file that is open is the file. By the link thread, while
 * nothing reads or writes.  */
void spill_found_again(void);

/* A free place, the next one if it can be; 0: no memory. By the mover alone.  */
uint32_t spill_take(void);

/* Write a chunk to its place, or read `bytes` from there on; 0 or a negative errno. By any thread.  */
int spill_write(uint32_t place, const void *from);
int spill_read(uint32_t place, void *to, size_t bytes);

/* The place is free again, and the disk has its space back. By any thread.  */
void spill_give(uint32_t place);

/* Bytes in places that are taken, and that were ever written. By any thread.  */
uint64_t spill_bytes(void);
uint64_t spill_written_bytes(void);

/* In the child of a fork: the parent's file stays the parent's alone.  */
void spill_close_in_child(void);
