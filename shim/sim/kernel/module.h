/* Modules, functions, and the kernels that are built in.  */
#pragma once

#include "stream/stream.h"

#define KERNEL_PARAMETERS 4

/* One built-in kernel: its parameters are 4 or 8 bytes each, widened to 64 bits.  */
struct kernel {
	const char *name;
	unsigned parameter_count;
	unsigned parameter_bytes[KERNEL_PARAMETERS];
	CUresult (*run)(CUstream stream, const uint64_t *parameters);
};

/* The built-in kernel of that name, or NULL.  */
const struct kernel *kernel_named(const char *name);
/* Hold the table of ranges for as long as the memory is used; false: the context's GPU may not touch it.  */
bool kernel_hold(CUstream stream, uint64_t address, uint64_t size, uint64_t alignment, bool write);
CUresult digest_kernel(CUstream stream, const uint64_t *parameters);

struct CUfunc_st {
	struct object object;
	CUfunction next; /* of its module */
	const struct kernel *kernel;
};

struct CUmod_st {
	struct object object;
	CUmodule next; /* of all */
	CUcontext context;
	uint64_t context_id;
	CUfunction functions; /* the entries of the text that are built in, in its order */
};

void modules_release_context(CUcontext context);
