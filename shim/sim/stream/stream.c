/* cuStream*: making, asking and waiting. Captures are in capture.c.  */
#include "stream/stream.h"

#include <stdlib.h>

#include "driver/api.h"
#include "stream/capture.h"
#include "pool/pool.h"
#include "stream/event.h"

struct thread_stream {
	struct thread_stream *next;
	CUcontext context;
	uint64_t context_id; /* a reset context is another one */
	CUstream stream;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t per_thread;

CUstream stream_new(CUcontext context, enum stream_kind kind, unsigned flags)
{
	CUstream stream = object_new(OBJECT_STREAM, sizeof(*stream));

	if (!stream)
		return NULL;
	stream->context = context;
	stream->kind = kind;
	stream->flags = flags;
	pthread_cond_init(&stream->wake, NULL);
	work_lock();
	stream->next = context->streams;
	context->streams = stream;
	work_unlock();
	return stream;
}

CUresult stream_make_legacy(CUcontext context)
{
	context->legacy = stream_new(context, STREAM_LEGACY, 0);
	return context->legacy ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void thread_ends(void *list)
{
	struct thread_stream *entry = list, *next;

	for (; entry; entry = next) {
		next = entry->next;
		if (object_is(entry->context, OBJECT_CONTEXT) && entry->context->id == entry->context_id &&
		    entry->context->active && object_is(entry->stream, OBJECT_STREAM))
			stream_retire(entry->stream);
		free(entry);
	}
}

static void make_key(void)
{
	pthread_key_create(&per_thread, thread_ends);
}

static CUresult stream_of_thread(CUcontext context, CUstream *stream)
{
	struct thread_stream *entry, *list;

	pthread_once(&once, make_key);
	list = pthread_getspecific(per_thread);
	for (entry = list; entry; entry = entry->next)
		if (entry->context == context && entry->context_id == context->id) {
			*stream = entry->stream;
			return CUDA_SUCCESS;
		}
	entry = calloc(1, sizeof(*entry));
	if (!entry)
		return CUDA_ERROR_OUT_OF_MEMORY;
	entry->stream = stream_new(context, STREAM_PER_THREAD, 0);
	if (!entry->stream) {
		free(entry);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	entry->context = context;
	entry->context_id = context->id;
	entry->next = list;
	pthread_setspecific(per_thread, entry);
	*stream = entry->stream;
	return CUDA_SUCCESS;
}

CUresult stream_of(CUcontext context, CUstream handle, CUstream *stream)
{
	if (handle == CU_STREAM_PER_THREAD)
		return stream_of_thread(context, stream);
	if (!handle || handle == CU_STREAM_LEGACY)
		*stream = context->legacy;
	else if (object_is(handle, OBJECT_STREAM))
		*stream = handle;
	else
		return CUDA_ERROR_INVALID_HANDLE;
	/* A green context's streams outlive it as handles.  */
	return (*stream)->context->active ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

SIM_API CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	CUcontext context;

	ENTER("cuStreamCreate");
	refused_ = context_current(&context);
	if (refused_ != CUDA_SUCCESS)
		return refused_;
	if (!stream || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING))
		return CUDA_ERROR_INVALID_VALUE;
	*stream = stream_new(context, STREAM_USER, flags);
	return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Returns at once; the stream's work goes on.  */
SIM_API CUresult cuStreamDestroy_v2(CUstream stream)
{
	ENTER("cuStreamDestroy");
	if (!object_is(stream, OBJECT_STREAM) || stream->kind != STREAM_USER)
		return stream ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	capture_abandon(stream);
	stream_retire(stream);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamSynchronize(CUstream handle)
{
	CUstream stream;

	ENTER_CONTEXT("cuStreamSynchronize", context);
	refused_ = stream_of(context, handle, &stream);
	if (refused_ == CUDA_SUCCESS)
		refused_ = capture_forbids_waiting(stream);
	if (refused_ != CUDA_SUCCESS)
		return refused_;
	context = stream->context;
	stream_finish(stream);
	pools_synchronised();
	return context->sticky;
}

SIM_API CUresult cuStreamQuery(CUstream handle)
{
	CUstream stream;

	ENTER_CONTEXT("cuStreamQuery", context);
	refused_ = stream_of(context, handle, &stream);
	if (refused_ == CUDA_SUCCESS)
		refused_ = capture_forbids_waiting(stream);
	if (refused_ != CUDA_SUCCESS)
		return refused_;
	if (!stream_idle(stream))
		return CUDA_ERROR_NOT_READY;
	return stream->context->sticky;
}

SIM_API CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags)
{
	CUstream stream;

	ENTER_CONTEXT("cuStreamWaitEvent", context);
	if (flags > 1)
		return CUDA_ERROR_INVALID_VALUE;
	if (!object_is(event, OBJECT_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	refused_ = stream_of(context, handle, &stream);
	return refused_ == CUDA_SUCCESS ? event_wait_in(stream, event) : refused_;
}

SIM_API CUresult cuStreamGetFlags(CUstream handle, unsigned int *flags)
{
	CUstream stream;

	ENTER_CONTEXT("cuStreamGetFlags", context);
	refused_ = stream_of(context, handle, &stream);
	if (refused_ == CUDA_SUCCESS && !flags)
		refused_ = CUDA_ERROR_INVALID_VALUE;
	if (refused_ == CUDA_SUCCESS)
		*flags = stream->flags;
	return refused_;
}
