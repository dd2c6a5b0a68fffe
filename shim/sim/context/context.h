/* Contexts, and which one is current on a thread.  */
#pragma once

#include "driver/objects.h"
#include "driver/sim_cuda.h"

struct slab;

struct CUctx_st {
	struct object object;
	CUcontext next; /* of all contexts that are alive */
	CUdevice device;
	unsigned gpu; /* of the machine */
	bool primary;
	CUcontext home; /* of a green context: the primary one, which owns its memory and code; NULL: it is its own */
	bool active; /* false: a primary context that is not retained, or a destroyed one */
	unsigned references;
	unsigned attached; /* cuCtxAttach */
	unsigned flags;
	uint64_t id;
	uint64_t charged; /* what the context itself costs the GPU */
	CUresult sticky;  /* the first fault of a kernel; every later call returns it */
	bool abandoned;   /* being destroyed: endless kernels end */
	unsigned peers;   /* bit per ordinal whose memory kernels here may use */
	CUstream legacy;
	CUstream streams; /* all, also destroyed ones that still have work */
	struct slab *slabs;
};

/* The thread's current context: CUDA_ERROR_INVALID_CONTEXT, _CONTEXT_IS_DESTROYED or its sticky error if it has one.  */
CUresult context_current(CUcontext *context);
bool context_is(CUcontext context);
/* What owns memory and code that are made in it.  */
static inline CUcontext context_home(CUcontext context)
{
	return context->home ? context->home : context;
}
/* A green context's own, made and ended beside a reference of the primary context.  */
CUresult context_make_green(CUcontext *made, CUdevice device);
void context_end_green(CUcontext context);
/* Remember the first fault.  */
void context_fail(CUcontext context, CUresult error);
/* Call for each context that is alive.  */
void contexts_each(void (*call)(CUcontext context, void *data), void *data);

void current_push(CUcontext context);
/* A destroyed context leaves the top of the calling thread's stack; elsewhere it stays, as a dead handle.  */
void current_forget(CUcontext context);
