/* The host memory behind the simulated device memory: one memfd per process, given out in pieces that never move.  */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define MEMFILE_NONE UINT64_MAX

/* A memfd of our own kind, closed on exec; or -1.  */
int memfile_create(uint64_t size);
/* An offset for `size` bytes of zeroes in the process's file, or MEMFILE_NONE.  */
uint64_t memfile_take(uint64_t size);
void memfile_drop(uint64_t offset, uint64_t size);
/* Whether a piece of such a file was never touched: it is zero, and takes no memory of the host.  */
bool file_is_blank(int fd, uint64_t offset, uint64_t size);
/* The process's file; only after memfile_take().  */
int memfile_fd(void);
/* In the child after fork.  */
void memfile_forget(void);

/* Addresses without memory: aligned, `hint` if it is free; 0 when there are none.  */
uint64_t address_reserve(uint64_t size, uint64_t alignment, uint64_t hint);
void address_release(uint64_t address, uint64_t size);
/* Map a piece of a file at reserved addresses, and back to nothing; 0 or -1.  */
int address_map(uint64_t address, uint64_t size, int fd, uint64_t offset);
int address_unmap(uint64_t address, uint64_t size);
