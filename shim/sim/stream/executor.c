/* Queues, fences, and the threads that do the work.  */
#include <stdlib.h>
#include <unistd.h>

#include "base/own_thread.h"
#include "driver/api.h"
#include "stream/capture.h"
#include "machine/activity.h"
#include "stream/stream.h"

struct work {
	struct work *next;
	struct operation *operation;
	struct fence *fence;
	unsigned after_count;
	struct fence *after[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t done = PTHREAD_COND_INITIALIZER;

void work_lock(void)
{
	pthread_mutex_lock(&lock);
}

void work_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

void *operation_new(size_t size, CUresult (*run)(struct operation *, CUstream))
{
	struct operation *operation = calloc(1, size);

	if (operation)
		operation->run = run;
	return operation;
}

void operation_release(struct operation *operation)
{
	if (operation && operation->drop)
		operation->drop(operation);
	free(operation);
}

struct fence *fence_hold(struct fence *fence)
{
	if (fence)
		fence->references++;
	return fence;
}

void fence_release(struct fence *fence)
{
	if (fence && --fence->references == 0)
		free(fence);
}

void fence_wait(struct fence *fence)
{
	work_lock();
	while (fence && !fence->done)
		pthread_cond_wait(&done, &lock);
	work_unlock();
}

bool stream_blocking(CUstream stream)
{
	return stream->kind != STREAM_LEGACY && !(stream->flags & CU_STREAM_NON_BLOCKING);
}

static bool pending(const struct fence *fence)
{
	return fence && !fence->done;
}

/* The legacy stream waits for the blocking ones and they for it.  */
static unsigned implicit_order(CUstream stream, struct fence **after)
{
	unsigned count = 0;

	if (stream->kind == STREAM_LEGACY) {
		for (CUstream other = stream->context->streams; other; other = other->next)
			if (stream_blocking(other) && pending(other->latest)) {
				if (after)
					after[count] = fence_hold(other->latest);
				count++;
			}
	} else if (stream_blocking(stream) && pending(stream->context->legacy->latest)) {
		if (after)
			after[0] = fence_hold(stream->context->legacy->latest);
		count = 1;
	}
	return count;
}

/* A fault becomes the context's sticky error.  */
static void run_operation(struct operation *operation, CUstream stream)
{
	CUcontext context = stream->context;
	CUresult result = __atomic_load_n(&context->sticky, __ATOMIC_ACQUIRE);

	if (result != CUDA_SUCCESS)
		return; /* nothing runs in a context after a fault */
	if (operation->fault == FAULT_LATE)
		usleep(LATE_MS * 1000);
	if (operation->kernels)
		activity_begin(context->gpu, SIM_KERNELS);
	result = operation->fault == FAULT_FAIL ? CUDA_ERROR_LAUNCH_FAILED : operation->run(operation, stream);
	if (operation->kernels)
		activity_end(context->gpu, SIM_KERNELS);
	if (result != CUDA_SUCCESS)
		context_fail(context, result);
}

static void finish(struct work *work)
{
	for (unsigned i = 0; i < work->after_count; i++)
		fence_release(work->after[i]);
	work->fence->end_ns = monotonic_ns();
	work->fence->done = true;
	fence_release(work->fence);
	free(work);
	pthread_cond_broadcast(&done);
}

static void free_stream(CUstream stream)
{
	CUstream *link = &stream->context->streams;

	while (*link && *link != stream)
		link = &(*link)->next;
	if (*link)
		*link = stream->next;
	fence_release(stream->latest);
	pthread_cond_destroy(&stream->wake);
	object_free(OBJECT_STREAM, stream);
}

static void *execute(void *argument)
{
	CUstream stream = argument;

	work_lock();
	for (;;) {
		struct work *work = stream->first;

		if (!work) {
			if (stream->destroyed)
				break;
			pthread_cond_wait(&stream->wake, &lock);
			continue;
		}
		for (unsigned i = 0; i < work->after_count; i++)
			while (!work->after[i]->done)
				pthread_cond_wait(&done, &lock);
		work_unlock();
		if (work->operation)
			run_operation(work->operation, stream);
		operation_release(work->operation);
		work_lock();
		stream->first = work->next;
		if (!stream->first)
			stream->last = NULL;
		finish(work);
	}
	stream->running = false;
	free_stream(stream);
	pthread_cond_broadcast(&done);
	work_unlock();
	return NULL;
}

/* No signal of the program is ever delivered to a thread it does not know.  */
static bool start_executor(CUstream stream)
{
	stream->running = thread_begin(execute, stream) == 0;
	return stream->running;
}

static struct work *new_work(CUstream stream, struct fence *also_after)
{
	unsigned count = implicit_order(stream, NULL);
	struct work *work = calloc(1, sizeof(*work) + (count + 1) * sizeof(*work->after));

	if (!work)
		return NULL;
	work->fence = calloc(1, sizeof(*work->fence));
	if (!work->fence) {
		free(work);
		return NULL;
	}
	work->fence->references = 1;
	work->after_count = implicit_order(stream, work->after);
	if (pending(also_after))
		work->after[work->after_count++] = fence_hold(also_after);
	return work;
}

CUresult stream_enqueue(CUstream stream, struct operation *operation, struct fence *also_after, struct fence **fence)
{
	struct work *work = new_work(stream, also_after);

	if (!work) {
		operation_release(operation);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	work->operation = operation;
	if (!operation && !stream->first && !work->after_count) {
		/* a mark in an idle stream needs no thread */
	} else if (!stream->running && !start_executor(stream)) {
		operation_release(operation);
		finish(work);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	fence_release(stream->latest);
	stream->latest = fence_hold(work->fence);
	if (fence)
		*fence = fence_hold(work->fence);
	if (!operation && !stream->first && !work->after_count) {
		finish(work);
		return CUDA_SUCCESS;
	}
	if (stream->last)
		stream->last->next = work;
	else
		stream->first = work;
	stream->last = work;
	pthread_cond_signal(&stream->wake);
	return CUDA_SUCCESS;
}

CUresult stream_submit(CUstream stream, struct operation *operation, struct fence **fence)
{
	CUresult result;

	if (fence)
		*fence = NULL;
	if (operation)
		operation->fault = faults_effect(operation->bytes);
	work_lock();
	result = capture_operation(stream, operation);
	if (result == CUDA_ERROR_NOT_FOUND) /* it captures nothing */
		result = stream_enqueue(stream, operation, NULL, fence);
	work_unlock();
	return result;
}

CUresult stream_submit_and_wait(CUstream stream, struct operation *operation)
{
	CUcontext context = stream->context;
	struct fence *fence;
	CUresult result = stream_submit(stream, operation, &fence);

	if (result != CUDA_SUCCESS || !fence)
		return result;
	fence_wait(fence);
	work_lock();
	fence_release(fence);
	work_unlock();
	return __atomic_load_n(&context->sticky, __ATOMIC_ACQUIRE);
}

CUresult stream_wait_fence(CUstream stream, struct fence *fence)
{
	return pending(fence) ? stream_enqueue(stream, NULL, fence, NULL) : CUDA_SUCCESS;
}

static bool waits_for(CUstream stream, CUstream other)
{
	return stream == other || (stream->kind == STREAM_LEGACY && stream_blocking(other));
}

bool stream_idle(CUstream stream)
{
	bool idle = true;

	work_lock();
	for (CUstream other = stream->context->streams; other; other = other->next)
		if (waits_for(stream, other) && pending(other->latest))
			idle = false;
	work_unlock();
	return idle;
}

/* Waits for what has been submitted until now, one stream after the other.  */
static void finish_some(CUcontext context, CUstream only)
{
	CUstream stream;

	work_lock();
again:
	for (stream = context->streams; stream; stream = stream->next) {
		struct fence *fence = stream->latest;

		if ((only && !waits_for(only, stream)) || !pending(fence))
			continue;
		fence_hold(fence);
		while (!fence->done)
			pthread_cond_wait(&done, &lock);
		fence_release(fence);
		goto again; /* the list may have changed */
	}
	work_unlock();
}

void stream_finish(CUstream stream)
{
	finish_some(stream->context, stream);
}

void streams_finish(CUcontext context)
{
	finish_some(context, NULL);
}

static void count_busy(CUcontext context, void *data)
{
	work_lock();
	for (CUstream stream = context->streams; stream; stream = stream->next)
		if (pending(stream->latest))
			++*(unsigned *)data;
	work_unlock();
}

bool streams_all_idle(void)
{
	unsigned busy = 0;

	contexts_each(count_busy, &busy);
	return busy == 0;
}

void stream_retire(CUstream stream)
{
	work_lock();
	object_kill(stream);
	stream->destroyed = true;
	if (stream->running)
		pthread_cond_signal(&stream->wake);
	else
		free_stream(stream);
	work_unlock();
}

void streams_destroy(CUcontext context)
{
	work_lock();
	while (context->streams) {
		CUstream stream = context->streams;

		object_kill(stream);
		stream->destroyed = true;
		if (!stream->running) {
			free_stream(stream);
			continue;
		}
		pthread_cond_signal(&stream->wake);
		pthread_cond_wait(&done, &lock); /* the executor takes it off the list */
	}
	context->legacy = NULL;
	work_unlock();
}
