/* What a capturing stream is given becomes nodes of a graph; events carry a capture from stream to stream.
 *
 * Errors and what they invalidate are as they were read off driver 580.159 on an H200, call by call.  */
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "graph/capture_state.h"

static struct capture *open_captures;

struct capture *captures_open(void)
{
	return open_captures;
}

int capture_this_thread(void)
{
	static __thread int thread;

	if (!thread)
		thread = (int)syscall(SYS_gettid);
	return thread;
}

static void release(struct capture *capture)
{
	if (--capture->references)
		return;
	free(capture->streams);
	free(capture);
}

/* What later nodes of the stream depend on.  */
static bool capture_set_tips(CUstream stream, const CUgraphNode *tips, unsigned count)
{
	CUgraphNode *copy = NULL;

	if (count) {
		copy = malloc(count * sizeof(*copy));
		if (!copy)
			return false;
		memcpy(copy, tips, count * sizeof(*copy));
	}
	free(stream->tips);
	stream->tips = copy;
	stream->tip_count = count;
	return true;
}

static bool join(struct capture *capture, CUstream stream)
{
	CUstream *streams = realloc(capture->streams, (capture->stream_count + 1) * sizeof(*streams));

	if (!streams)
		return false;
	capture->streams = streams;
	streams[capture->stream_count++] = stream;
	stream->capture = capture;
	return true;
}

CUresult capture_begin(CUstream stream, int mode)
{
	struct capture *capture = calloc(1, sizeof(*capture));

	if (!capture)
		return CUDA_ERROR_OUT_OF_MEMORY;
	capture->references = 1;
	capture->graph = graph_new();
	if (!capture->graph || !join(capture, stream)) {
		if (capture->graph)
			graph_free(capture->graph);
		free(capture);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	capture->origin = stream;
	capture->mode = mode;
	capture->thread = capture_this_thread();
	capture->next = open_captures;
	open_captures = capture;
	return CUDA_SUCCESS;
}

void capture_end(struct capture *capture)
{
	struct capture **link = &open_captures;

	while (*link != capture)
		link = &(*link)->next;
	*link = capture->next;
	for (unsigned i = 0; i < capture->stream_count; i++) {
		capture->streams[i]->capture = NULL;
		capture_set_tips(capture->streams[i], NULL, 0);
	}
	capture->stream_count = 0;
	if (capture->graph)
		graph_free(capture->graph);
	capture->graph = NULL;
	capture->origin = NULL;
	release(capture);
}

struct capture *capture_of_blocking(CUcontext context)
{
	for (struct capture *capture = open_captures; capture; capture = capture->next)
		for (unsigned i = 0; i < capture->stream_count; i++)
			if (capture->streams[i]->context == context && stream_blocking(capture->streams[i]))
				return capture;
	return NULL;
}

/* The legacy stream would wait for a capturing one.  */
static CUresult forbid_implicit(CUstream stream)
{
	struct capture *capture =
		stream->kind == STREAM_LEGACY ? capture_of_blocking(stream->context) : NULL;

	if (!capture)
		return CUDA_ERROR_NOT_FOUND;
	capture->invalidated = true;
	return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult capture_operation(CUstream stream, struct operation *operation)
{
	struct capture *capture = stream->capture;
	CUgraphNode node;
	CUresult result;

	if (!capture) {
		result = forbid_implicit(stream);
		if (result != CUDA_ERROR_NOT_FOUND)
			operation_release(operation);
		return result;
	}
	if (capture->invalidated) {
		operation_release(operation);
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	}
	node = graph_add(capture->graph, operation, stream->tips, stream->tip_count);
	if (!node || !capture_set_tips(stream, &node, 1)) {
		capture->invalidated = true;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

void capture_forget_event(CUevent event)
{
	free(event->tips);
	event->tips = NULL;
	event->tip_count = 0;
	if (event->capture)
		release(event->capture);
	event->capture = NULL;
}

CUresult capture_record_event(CUstream stream, CUevent event)
{
	struct capture *capture = stream->capture;

	if (!capture)
		return forbid_implicit(stream);
	if (capture->invalidated)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	capture_forget_event(event);
	fence_release(event->fence);
	event->fence = NULL;
	if (stream->tip_count) {
		event->tips = malloc(stream->tip_count * sizeof(*event->tips));
		if (!event->tips)
			return CUDA_ERROR_OUT_OF_MEMORY;
		memcpy(event->tips, stream->tips, stream->tip_count * sizeof(*event->tips));
		event->tip_count = stream->tip_count;
	}
	event->capture = capture;
	capture->references++;
	return CUDA_SUCCESS;
}

/* The stream's next node depends on what the event saw, too.  */
static CUresult add_tips(CUstream stream, CUevent event)
{
	unsigned count = stream->tip_count;
	CUgraphNode *both = malloc((count + event->tip_count + 1) * sizeof(*both));
	bool set;

	if (!both)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (count)
		memcpy(both, stream->tips, count * sizeof(*both));
	for (unsigned i = 0; i < event->tip_count; i++) {
		unsigned seen = 0;

		while (seen < count && both[seen] != event->tips[i])
			seen++;
		if (seen == count)
			both[count++] = event->tips[i];
	}
	set = capture_set_tips(stream, both, count);
	free(both);
	return set ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult invalidate(struct capture *capture, CUresult error)
{
	if (capture)
		capture->invalidated = true;
	return error;
}

CUresult capture_wait_event(CUstream stream, CUevent event)
{
	struct capture *from = event->capture, *to = stream->capture;

	if (!from && !to)
		return CUDA_ERROR_NOT_FOUND;
	if (to && to->invalidated)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (!from) /* work outside the graph; an event that was never recorded is nothing to wait for */
		return event->fence ? invalidate(to, CUDA_ERROR_STREAM_CAPTURE_ISOLATION) : CUDA_SUCCESS;
	if (!from->graph) /* that capture has ended */
		return invalidate(to, CUDA_ERROR_INVALID_VALUE);
	if (from->invalidated)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (to && to != from) {
		invalidate(from, CUDA_SUCCESS);
		return invalidate(to, CUDA_ERROR_STREAM_CAPTURE_MERGE);
	}
	if (stream->kind == STREAM_LEGACY)
		return invalidate(from, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	if (!to && !join(from, stream))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return add_tips(stream, event);
}

bool capture_active(CUstream stream)
{
	bool active;

	work_lock();
	active = stream->capture != NULL;
	work_unlock();
	return active;
}

void capture_abandon(CUstream stream)
{
	struct capture *capture;

	work_lock();
	capture = stream->capture;
	if (capture && capture->origin == stream) {
		capture_end(capture);
	} else if (capture) {
		unsigned kept = 0;

		for (unsigned i = 0; i < capture->stream_count; i++)
			if (capture->streams[i] != stream)
				capture->streams[kept++] = capture->streams[i];
		capture->stream_count = kept;
		stream->capture = NULL;
		capture_set_tips(stream, NULL, 0);
		capture->invalidated = true; /* its work can no longer be joined */
	}
	work_unlock();
}

void captures_abandon(CUcontext context)
{
	struct capture *capture;

	work_lock();
	capture = open_captures;
	while (capture) {
		struct capture *next = capture->next;

		if (capture->origin->context == context)
			capture_end(capture);
		capture = next;
	}
	work_unlock();
}
