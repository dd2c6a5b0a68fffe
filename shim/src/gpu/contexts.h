/* What the shim knows of contexts and streams: enough to see that the GPU is idle and to copy memory.  */
#pragma once

#include <stdbool.h>

#include "base/reasons.h"
#include "driver/cuda_types.h"
#include "gpu/devices.h"
#include "protocol.h"

#define TRANSFERS_UNDER_WAY 8

struct context {
	_Atomic(CUcontext) handle;
	struct device *device;
	struct context *home;         /* of a green context: the primary one, which has its memory; else itself */
	const void *green;            /* whose context it is; NULL: no green one's */
	_Atomic unsigned attached;    /* by cuCtxAttach, and not detached yet */
	_Atomic(CUstream) stream;     /* the mover's */
	_Atomic(struct digester *) digester; /* NULL: no digests here */
	_Atomic bool digests_lack_room;      /* memory was short when they were tried: it may be there later */
	CUevent events[TRANSFERS_UNDER_WAY];
	unsigned next_event;
	_Atomic bool in_doubt;        /* the driver did not say whether the mover's copies are done */
	CUevent marks[2];             /* after the copies of one window of a streaming park, and of the next */
	struct ring *ring;            /* the mover's, for copies that need staging; NULL: none yet */
	_Atomic(CUdeviceptr) witness; /* a small cuMemAlloc block, whose attributes backed blocks answer with */
	_Atomic bool ready;           /* stream and witness exist, and the copy path has been walked once */
	struct context *next;
};

/* Where memory of the calling thread's current context lives, made known; NULL if there is none. It is that
 * context, or a green one's primary context. Never called by our own threads.  */
struct context *context_current(void);

/* The current context itself.  */
struct context *context_current_own(void);

/* A green context's own, which shares the memory of its device's primary context, is known from now on.  */
void context_note_green(CUcontext handle, const void *green, struct device *device, CUcontext primary);
struct context *context_of_green(const void *green);

/* The parts of the shim that keep something in each context.  */
struct context_users {
	CUresult (*make_ready)(struct context *context); /* while the context is current */
	void (*forget)(struct context *context);     /* the driver took it along */
	void (*forget_host_memory)(void);            /* so with what was registered in it */
};
void contexts_set_users(const struct context_users *now);

/* Make the mover's stream and the witness, and copy a little both ways, so that nothing is left for the driver to load
 * when the mover comes; put off while a stream capture is open. Digests for which memory was short are tried again.  */
void context_make_ready(struct context *context);

/* The context of that handle; NULL: not known. Asks the driver nothing.  */
struct context *context_known(CUcontext handle);

struct context *contexts_first(void);

/* A context of that device that the mover can copy in; NULL: none.  */
struct context *context_to_copy_in(const struct device *device);
void context_forget(CUcontext handle);

/* Around whatever ends a context, from before the driver is asked until it is forgotten.  */
void contexts_ending(void);
void contexts_ended(void);
/* Around retaining, releasing and resetting a primary context: whether a release was the last one is only known
 * afterwards, and what is dropped then must not be the next one's, which has the same handle.  */
void primary_contexts_lock(void);
void primary_contexts_unlock(void);
/* For the mover where calls go on: false: a context is being ended now. True: none ends until contexts_let_end,
 * which is not to be long, since a thread that would end one waits for it.  */
bool contexts_keep(void);
void contexts_let_end(void);

/* Whether the mover's copies there are done. Where a wait for them failed the driver is asked again, with the context current.  */
bool context_has_copied(struct context *context);

/* Streams of a context, for the idle probe.  */
void stream_note(CUstream stream, struct context *context);
void stream_forget(CUstream stream);

/* Captures: counted before the driver's call begins, so that the probe never touches the driver during one.  */
void capture_opening(CUstream stream);
void capture_closed(CUstream stream);
unsigned captures_open(void);

/* NO_REASON if no work runs or waits on any stream of any context, and none is being ended; else why not.
 * Never blocks. Called by the mover alone.  */
enum reason gpu_busy(void);

/* The error of a context that has failed for good: an illegal address in the application's kernel, say, or a fault of the
 * GPU. Every call in it returns that error from then on, in a new one on that device too, its memory can neither be
 * read nor filled, and only the end of the process ends that. The page says so from then on, and the process is not
 * asked to park.
 *
 * CUDA_SUCCESS: none has, or a stream capture is open, which the question itself would invalidate, or a context is
 * being ended. Never blocks. Called by the mover alone, with relaxed capture rules.  */
CUresult contexts_failed(void);

/* What happened, for the user.  */
void contexts_failed_text(char *text, size_t size);

/* Wait for every context's work, per-thread default streams included.  */
CUresult gpu_synchronise(void);
