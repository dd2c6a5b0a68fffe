/* Copies and fills as operations.  */
#pragma once

#include "memory/ranges.h"
#include "stream/stream.h"

struct side {
	uint64_t address;
	CUcontext context; /* whose GPU must reach it */
	bool table;      /* it must be in the table of ranges: anything but plain host memory */
};

struct copy {
	struct operation operation;
	struct side to, from;
	uint64_t size;
	void *staged;
};

struct fill {
	struct operation operation;
	CUdeviceptr to;
	unsigned int value, element; /* of 1, 2 or 4 bytes */
	size_t count;
};

/* Say where a side lies; CUDA_ERROR_INVALID_VALUE when [address, address + size) is not memory that it may be. `device`: it
 * is not plain host memory.  */
CUresult side_locate(struct side *side, bool device, uint64_t size);
/* Whether [address, address + size) lies partly in pinned host memory, or in two registrations of it: asynchronous
 * copies refuse that (seen on an H200; "Memory regions requested must be either entirely registered with CUDA …", CUDA
 * Driver API, cuMemcpyDtoHAsync).  */
bool side_straddles(uint64_t address, uint64_t size);

/* Submit a copy whose sides were located. `wait`: until it is done. Pageable memory is read before this returns, and
 * written, as the driver does it.  */
CUresult copy_submit(CUstream stream, const struct copy *shape, bool wait);
/* The same with a fill, which is not waited for.  */
CUresult fill_submit(CUstream stream, const struct fill *what);
