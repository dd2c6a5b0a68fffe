#include "gpu/contexts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/growable.h"
#include "base/log.h"
#include "base/monotonic_futex.h"
#include "base/per_process.h"
#include "driver/real_driver.h"
#include "state/shim_state.h"
#include "state/status_page.h"

#define MAX_CAPTURES 256
#define WITNESS_BYTES 4096
#define KEEP_POLL_NS (200 * 1000ull)
#define KEPT -1

struct stream {
	CUstream handle;
	struct context *context;
};

struct capture {
	CUstream stream;
	pid_t tid; /* of a per-thread stream's thread, else 0 */
	const struct context *context; /* it ends with that */
};

/* Guards everything below. The mover holds it while it asks the driver about streams: a stream or context is taken out before
 * the driver destroys it, and a capture is counted before the driver begins it, so none of that happens while the mover asks.
 * It is never held across a driver call that may block.  */
static OF_PROCESS pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;
static OF_PROCESS pthread_mutex_t ready_lock = PTHREAD_MUTEX_INITIALIZER;
static OF_PROCESS _Atomic(struct context *) contexts;
static OF_PROCESS struct stream *streams;
static OF_PROCESS size_t streams_count, streams_size;
static struct capture captures[MAX_CAPTURES];
static OF_PROCESS _Atomic unsigned captures_count;
static OF_PROCESS pthread_mutex_t primaries_lock = PTHREAD_MUTEX_INITIALIZER;
/* How many contexts are being ended; KEPT while the mover asks the driver about contexts, and none may end.  */
static OF_PROCESS _Atomic int endings;
static OF_PROCESS _Atomic int failed_with; /* CUDA_SUCCESS: no context has failed */

struct context *contexts_first(void)
{
	return atomic_load(&contexts);
}

struct context *context_to_copy_in(const struct device *device)
{
	struct context *context = contexts_first();

	while (context && !(context->device == device && context->handle && context->ready))
		context = context->next;
	return context;
}

static struct context *context_find(CUcontext handle)
{
	struct context *context = contexts_first();

	while (context && context->handle != handle)
		context = context->next;
	return context;
}

struct context *context_known(CUcontext handle)
{
	return handle ? context_find(handle) : NULL;
}

/* Return the context of that handle, and make it known if it was not; NULL for want of memory.  */
static struct context *context_add(CUcontext handle, struct device *device, struct context *home, const void *green)
{
	struct context *context, *fresh = calloc(1, sizeof(*fresh));

	if (!fresh)
		return NULL;
	fresh->handle = handle;
	fresh->device = device;
	fresh->home = home ? home : fresh;
	fresh->green = green;
	pthread_mutex_lock(&contexts_lock);
	context = context_find(handle);
	if (context) {
		free(fresh);
	} else {
		context = fresh;
		context->next = contexts_first();
		atomic_store(&contexts, context);
	}
	pthread_mutex_unlock(&contexts_lock);
	return context;
}

struct context *context_current_own(void)
{
	struct context *context;
	struct device *device;
	CUcontext handle = NULL;
	CUdevice ordinal;

	if (!shim_is_on() || driver.cuCtxGetCurrent(&handle) != CUDA_SUCCESS || !handle)
		return NULL;
	context = context_find(handle);
	if (context)
		return context;
	if (driver.cuCtxGetDevice(&ordinal) != CUDA_SUCCESS)
		return NULL;
	device = device_known(ordinal);
	return device ? context_add(handle, device, NULL, NULL) : NULL;
}

struct context *context_current(void)
{
	struct context *context = context_current_own();

	return context ? context->home : NULL;
}

void context_note_green(CUcontext handle, const void *green, struct device *device, CUcontext primary)
{
	struct context *home = context_add(primary, device, NULL, NULL);

	if (!home || !context_add(handle, device, home, green))
		shim_give_up_parking("no memory to remember a green context");
}

struct context *context_of_green(const void *green)
{
	struct context *context = contexts_first();

	while (context && !(context->handle && context->green == green))
		context = context->next;
	return context;
}

static CUresult ready_for_none(struct context *context)
{
	(void)context;
	return CUDA_SUCCESS;
}

static void told_to_none(struct context *context)
{
	(void)context;
}

static void none_has_memory(void)
{
}

static const struct context_users no_users = {ready_for_none, told_to_none, none_has_memory}, *users = &no_users;

void contexts_set_users(const struct context_users *now)
{
	users = now;
}

/* Walk the copy path once with the witness, on the application's thread: whatever the driver loads lazily for a copy
 * is loaded here, where the dynamic linker's lock cannot be held by a thread that waits for us.  */
static CUresult walk_copy_path(struct context *context)
{
	static const unsigned char zeros[WITNESS_BYTES];
	unsigned char back[WITNESS_BYTES];
	CUresult result = driver.cuMemcpyHtoDAsync(context->witness, zeros, sizeof(zeros), context->stream);

	if (result == CUDA_SUCCESS)
		result = driver.cuMemsetD32Async(context->witness, 0, sizeof(zeros) / 4, context->stream);
	if (result == CUDA_SUCCESS)
		result = driver.cuEventRecord(context->events[0], context->stream);
	if (result == CUDA_SUCCESS)
		result = driver.cuEventSynchronize(context->events[0]);
	if (result == CUDA_SUCCESS)
		result = driver.cuMemcpyDtoHAsync(back, context->witness, sizeof(back), context->stream);
	return result == CUDA_SUCCESS ? driver.cuStreamSynchronize(context->stream) : result;
}

static bool is_complete(struct context *context)
{
	return context->ready && !context->digests_lack_room;
}

static void make_ready(struct context *context)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUdeviceptr witness;
	CUcontext popped;
	CUstream stream;

	if (driver.cuCtxPushCurrent(context->handle) != CUDA_SUCCESS) /* a green one is current where the primary one is meant */
		return;
	/* Relaxed: another thread's capture in global mode must not be broken by this thread's housekeeping.  */
	if (driver.cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS) {
		driver.cuCtxPopCurrent(&popped);
		return;
	}
	if (!context->stream && driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS)
		context->stream = stream;
	if (!context->witness && driver.cuMemAlloc(&witness, WITNESS_BYTES) == CUDA_SUCCESS)
		context->witness = witness;
	if (context->stream && context->witness && users->make_ready(context) == CUDA_SUCCESS && !context->ready)
		context->ready = walk_copy_path(context) == CUDA_SUCCESS;
	driver.cuThreadExchangeStreamCaptureMode(&mode);
	driver.cuCtxPopCurrent(&popped);
}

/* Only one thread at a time does it, and no other waits for it: a process with a context that is not ready is only not parked
 * yet.  */
void context_make_ready(struct context *context)
{
	if (is_complete(context) || captures_open() || pthread_mutex_trylock(&ready_lock) != 0)
		return;
	if (!is_complete(context))
		make_ready(context);
	pthread_mutex_unlock(&ready_lock);
}

/* Forget the captures of a context that was destroyed in their midst: they have no end.  */
static void captures_forget(const struct context *context)
{
	unsigned kept = 0, count = atomic_load(&captures_count);

	for (unsigned i = 0; i < count; i++)
		if (captures[i].context != context)
			captures[kept++] = captures[i];
	atomic_store(&captures_count, kept);
}

/* With the lock held.  */
static void forget(struct context *context)
{
	size_t kept = 0;

	for (size_t i = 0; i < streams_count; i++)
		if (streams[i].context != context)
			streams[kept++] = streams[i];
	streams_count = kept;
	captures_forget(context);
	/* The description stays in the list (others may be reading it), emptied: a primary context that is
	 * retained again may come back under the same handle.  */
	context->stream = NULL;
	context->witness = 0;
	memset(context->events, 0, sizeof(context->events));
	memset(context->marks, 0, sizeof(context->marks));
	context->next_event = 0;
	context->in_doubt = false;
	users->forget(context);
	context->ready = false;
	context->handle = NULL;
}

void context_forget(CUcontext handle)
{
	struct context *context;

	pthread_mutex_lock(&contexts_lock);
	context = context_find(handle);
	if (context) {
		/* Green contexts end with their primary one; without it they have registered nothing.  */
		for (struct context *green = contexts_first(); green; green = green->next)
			if (green != context && green->home == context && green->handle)
				forget(green);
		if (context->home == context)
			users->forget_host_memory();
		forget(context);
	}
	pthread_mutex_unlock(&contexts_lock);
}

void stream_note(CUstream handle, struct context *context)
{
	if (!context)
		return;
	pthread_mutex_lock(&contexts_lock);
	if (array_has_room(streams, streams_count, streams_size))
		streams[streams_count++] = (struct stream){handle, context};
	else
		shim_give_up_parking("no memory to remember a stream");
	pthread_mutex_unlock(&contexts_lock);
}

static bool is_per_thread(CUstream stream)
{
	return stream == NULL || stream == CU_STREAM_PER_THREAD;
}

/* Return the index of the stream's capture; -1 if none is known.  */
static int capture_find(CUstream stream)
{
	pid_t tid = is_per_thread(stream) ? (pid_t)syscall(SYS_gettid) : 0;

	/* A thread's own stream has two names.  */
	for (unsigned i = 0; i < captures_count && i < MAX_CAPTURES; i++)
		if (captures[i].tid == tid && (tid || captures[i].stream == stream))
			return (int)i;
	return -1;
}

void capture_opening(CUstream stream)
{
	const struct context *context = context_current_own();

	pthread_mutex_lock(&contexts_lock);
	for (size_t i = 0; i < streams_count; i++)
		if (streams[i].handle == stream)
			context = streams[i].context;
	if (captures_count < MAX_CAPTURES)
		captures[captures_count] = (struct capture){
			stream, is_per_thread(stream) ? (pid_t)syscall(SYS_gettid) : 0, context};
	else
		shim_give_up_parking("too many stream captures at once");
	if (captures_count < MAX_CAPTURES)
		captures_count++;
	pthread_mutex_unlock(&contexts_lock);
}

static void capture_remove(CUstream stream)
{
	int i = capture_find(stream);

	if (i >= 0) {
		captures_count--;
		captures[i] = captures[captures_count];
	}
}

void capture_closed(CUstream stream)
{
	pthread_mutex_lock(&contexts_lock);
	capture_remove(stream);
	pthread_mutex_unlock(&contexts_lock);
}

void stream_forget(CUstream handle)
{
	pthread_mutex_lock(&contexts_lock);
	for (size_t i = 0; i < streams_count; i++)
		if (streams[i].handle == handle) {
			streams[i] = streams[--streams_count];
			break;
		}
	if (!is_per_thread(handle))
		capture_remove(handle);
	pthread_mutex_unlock(&contexts_lock);
}

unsigned captures_open(void)
{
	return atomic_load(&captures_count);
}

static enum reason stream_busy(CUstream stream)
{
	CUresult result = driver.cuStreamQuery(stream);

	if (result == CUDA_SUCCESS)
		return NO_REASON;
	return result == CUDA_ERROR_NOT_READY ? REASON_GPU_COMPUTES : REASON_CONTEXT_FAILS;
}

static enum reason context_busy(struct context *context)
{
	enum reason busy;

	if (!context->handle)
		return NO_REASON;
	if (driver.cuCtxSetCurrent(context->handle) != CUDA_SUCCESS)
		return REASON_CONTEXT_UNUSABLE;
	busy = stream_busy(CU_STREAM_LEGACY);
	for (size_t i = 0; i < streams_count && !busy; i++)
		if (streams[i].context == context)
			busy = stream_busy(streams[i].handle);
	return busy;
}

enum reason gpu_busy(void)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	enum reason busy = NO_REASON;

	if (!contexts_keep()) /* whether a release is the last one is known when the context is gone */
		return REASON_CONTEXT_ENDS;
	pthread_mutex_lock(&contexts_lock);
	driver.cuThreadExchangeStreamCaptureMode(&mode);
	if (captures_count)
		busy = REASON_CAPTURE_OPEN;
	for (struct context *context = contexts_first(); context && !busy; context = context->next)
		busy = context_busy(context);
	driver.cuCtxSetCurrent(NULL);
	pthread_mutex_unlock(&contexts_lock);
	contexts_let_end();
	return busy;
}

static CUresult context_error(const struct context *context)
{
	CUresult result;

	if (!context->handle)
		return CUDA_SUCCESS;
	result = driver.cuCtxSetCurrent(context->handle);
	return result == CUDA_SUCCESS ? driver.cuStreamQuery(CU_STREAM_LEGACY) : result;
}

/* As cuda.h says of them: "leaves the process in an inconsistent state and any further CUDA work will return the same error",
 * or the context "cannot be used".  */
#define LASTING(ERROR) {CUDA_ERROR_##ERROR, "CUDA_ERROR_" #ERROR}
static const struct {
	CUresult error;
	const char *name;
} lasting[] = {
	LASTING(ECC_UNCORRECTABLE),	LASTING(NVLINK_UNCORRECTABLE), LASTING(CONTAINED),	       LASTING(ILLEGAL_ADDRESS),
	LASTING(LAUNCH_TIMEOUT),	LASTING(ASSERT),	       LASTING(HARDWARE_STACK_ERROR),  LASTING(ILLEGAL_INSTRUCTION),
	LASTING(MISALIGNED_ADDRESS),	LASTING(INVALID_ADDRESS_SPACE), LASTING(INVALID_PC),	       LASTING(LAUNCH_FAILED),
	LASTING(TENSOR_MEMORY_LEAK),
};

static const char *lasting_name(CUresult error)
{
	for (size_t i = 0; i < sizeof(lasting) / sizeof(lasting[0]); i++)
		if (lasting[i].error == error)
			return lasting[i].name;
	return NULL;
}

/* In a context that has failed for good nothing runs.  */
bool context_has_copied(struct context *context)
{
	CUresult result;

	if (!context->in_doubt)
		return true;
	result = driver.cuCtxSetCurrent(context->handle);
	if (result == CUDA_SUCCESS)
		result = driver.cuStreamSynchronize(context->stream);
	context->in_doubt = result != CUDA_SUCCESS && !lasting_name(result);
	return !context->in_doubt;
}

CUresult contexts_failed(void)
{
	CUresult error = CUDA_SUCCESS;

	if (!contexts_keep())
		return CUDA_SUCCESS;
	pthread_mutex_lock(&contexts_lock);
	for (struct context *context = contexts_first(); context && !captures_count && !lasting_name(error);
	     context = context->next)
		error = context_error(context);
	driver.cuCtxSetCurrent(NULL);
	pthread_mutex_unlock(&contexts_lock);
	contexts_let_end();
	if (!lasting_name(error))
		return CUDA_SUCCESS;
	if (atomic_exchange(&failed_with, error) == CUDA_SUCCESS) {
		page_set_flags(AFFINODE_PAGE_UNPARKABLE, 0);
		log_line("a CUDA context has failed: error %d", error);
	}
	return error;
}

void contexts_failed_text(char *text, size_t size)
{
	int error = atomic_load(&failed_with);
	const char *name = lasting_name((CUresult)error);

	snprintf(text, size, "its CUDA context has failed with error %d (%s): nothing can be moved until the kernel is restarted",
		 error, name ? name : "?");
}

CUresult gpu_synchronise(void)
{
	CUresult result = CUDA_SUCCESS;

	for (struct context *context = contexts_first(); context && result == CUDA_SUCCESS; context = context->next) {
		if (!context->handle)
			continue;
		result = driver.cuCtxSetCurrent(context->handle);
		if (result == CUDA_SUCCESS)
			result = driver.cuCtxSynchronize();
	}
	driver.cuCtxSetCurrent(NULL);
	return result;
}

void contexts_ending(void)
{
	int now = atomic_load(&endings);

	while (now == KEPT || !atomic_compare_exchange_weak(&endings, &now, now + 1)) {
		if (now == KEPT)
			clock_sleep_ns(KEEP_POLL_NS);
		now = atomic_load(&endings);
	}
}

void contexts_ended(void)
{
	atomic_fetch_sub(&endings, 1);
}

void primary_contexts_lock(void)
{
	pthread_mutex_lock(&primaries_lock);
}

void primary_contexts_unlock(void)
{
	pthread_mutex_unlock(&primaries_lock);
}

bool contexts_keep(void)
{
	int none = 0;

	return atomic_compare_exchange_strong(&endings, &none, KEPT);
}

void contexts_let_end(void)
{
	atomic_store(&endings, 0);
}
