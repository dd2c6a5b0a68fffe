/* Copies and fills as operations.  */
#pragma once

#include "memory/ranges.h"
#include "stream/stream.h"

struct side {
	uint64_t address;
	uint64_t pitch;  /* from row to row */
	uint64_t slice;  /* from plane to plane */
	CUcontext context; /* whose GPU must reach it */
	bool table;      /* it must be in the table of ranges: anything but plain host memory */
};

struct copy {
	struct operation operation;
	struct side to, from;
	uint64_t width, height, depth; /* bytes, rows, planes */
	void *staged;
};

struct fill {
	struct operation operation;
	CUdeviceptr to;
	size_t pitch;
	unsigned int value, element; /* of 1, 2 or 4 bytes */
	size_t width, height;
};

enum side_kind { SIDE_HOST, SIDE_DEVICE, SIDE_ANY };

/* Say where a side lies; CUDA_ERROR_INVALID_VALUE when [address, address + extent) is not memory of that kind.  */
CUresult side_locate(struct side *side, enum side_kind kind, uint64_t extent);
/* Whether [address, address + extent) lies partly in pinned host memory, or in two registrations of it: asynchronous
 * copies refuse that (seen on an H200; "Memory regions requested must be either entirely registered with CUDA …", CUDA
 * Driver API, cuMemcpyDtoHAsync).  */
bool side_straddles(uint64_t address, uint64_t extent);
/* Bytes from a side's first to its last byte.  */
uint64_t side_extent(const struct side *side, const struct copy *shape);

/* Submit a copy whose sides were located. `wait`: until it is done. Pageable memory is read before this returns, and
 * written, as the driver does it.  */
CUresult copy_submit(CUstream stream, const struct copy *shape, bool wait);
/* The same with a fill, which is not waited for.  */
CUresult fill_submit(CUstream stream, const struct fill *what);
