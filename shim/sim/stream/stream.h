/* Streams: queues of work, each served by a thread of its own once it has work.
 * A fence is done when one
 * piece of work is; it is what events, synchronisation and the order between streams are made of.  */
#pragma once

#include <pthread.h>

#include "context/context.h"
#include "driver/sim_cuda.h"
#include "machine/faults.h"

struct capture;

struct operation {
	bool kernels; /* counts as GPU utilisation */
	uint64_t bytes; /* that a copy or a fill writes */
	enum fault_effect fault; /* what befalls it when it runs */
	CUresult (*run)(struct operation *operation, CUstream stream);
	void (*drop)(struct operation *operation); /* frees what it points to, not itself; may be NULL */
};

/* A zeroed operation of `size` bytes, or NULL.  */
void *operation_new(size_t size, CUresult (*run)(struct operation *, CUstream));
void operation_release(struct operation *operation);

struct fence {
	unsigned references; /* under the work lock */
	bool done;
	uint64_t end_ns;
};

enum stream_kind { STREAM_USER, STREAM_LEGACY, STREAM_PER_THREAD };

struct CUstream_st {
	struct object object;
	CUstream next; /* of its context */
	CUcontext context;
	enum stream_kind kind;
	unsigned flags;
	bool destroyed;
	bool running; /* has an executor */
	struct work *first, *last;
	struct fence *latest; /* of the last piece of work that was given to it; NULL: none yet */
	pthread_cond_t wake;
	struct capture *capture;
};

/* One lock for all queues, fences, events and captures: the simulator is not about speed.  */
void work_lock(void);
void work_unlock(void);

/* The stream that a handle means; NULL and CU_STREAM_LEGACY are the context's default stream.  */
CUresult stream_of(CUcontext context, CUstream handle, CUstream *stream);
CUresult stream_make_legacy(CUcontext context);

/* Put an operation (NULL: nothing but the order) behind the stream's work, or into what it captures. Takes the
 * operation over, also when it fails. `fence`, if wanted, gets a reference; it stays NULL while capturing.  */
CUresult stream_submit(CUstream stream, struct operation *operation, struct fence **fence);
/* The same, and wait until it is done; the result is the context's sticky error.  */
CUresult stream_submit_and_wait(CUstream stream, struct operation *operation);
/* Let the stream's later work wait for a fence (NULL: nothing to wait for).  */
CUresult stream_wait_fence(CUstream stream, struct fence *fence);

/* The three below under the work lock.  */
struct fence *fence_hold(struct fence *fence);
void fence_release(struct fence *fence);
CUresult stream_enqueue(CUstream stream, struct operation *operation, struct fence *also_after, struct fence **fence);
void fence_wait(struct fence *fence); /* not under the lock */

/* Whether the legacy stream and this one wait for each other.  */
bool stream_blocking(CUstream stream);
/* Wait for all that was submitted to a stream (for the legacy one: to every stream that it waits for).  */
void stream_finish(CUstream stream);
bool stream_idle(CUstream stream);
/* The same for all streams of a context, or of the process.  */
void streams_finish(CUcontext context);
bool streams_all_idle(void);
/* End the streams of a context; they have no work left.  */
void streams_destroy(CUcontext context);
/* The streams end once their work is done.  */
void stream_retire(CUstream stream);
CUstream stream_new(CUcontext context, enum stream_kind kind, unsigned flags);
