#include "host/bounce_ring.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "base/per_process.h"
#include "driver/real_driver.h"
#include "gate/gate.h"
#include "host/memory_limits.h"
#include "host/packs/spill_file.h"

/* Each copy of the GPU's costs 3 µs beside its bytes, and a ring larger than this one no longer stays in the CPU's caches.
 * 32 GiB into an H200 by 8 threads: 660 to 730 ms by 24 pieces of 4 MiB, 690 to 710 by 32, 700 to 820 by 16 of 8 MiB, 900 by
 * 24 of 8 MiB, 740 to 830 by 32 of 2 MiB; 620 is what the link takes.  */
#define PIECE_BYTES (2 * CHUNK_BYTES)
#define PIECES 24
#define RING_BYTES ((size_t)PIECES * PIECE_BYTES)
#define MAX_THREADS SPILL_THREADS

/* A park that is revoked still finishes these pieces, beside one stretch: 2 ms.  */
_Static_assert(PIECES * PIECE_BYTES <= 3 * SLAB_BYTES, "a revoked park would go on for too long");

struct piece {
	struct ring *ring;
	unsigned char *pinned, *host;
	uint32_t place; /* in the spill file; 0: `host` it is */
	CUdeviceptr device;
	size_t bytes;
	bool out;
	CUevent event; /* after the GPU's last copy to it, or from it */
	bool busy;     /* waits for a thread, or is in the hands of one */
	uint64_t number; /* of the copy that it was last used for */
	struct piece *next;
};

struct ring {
	CUcontext context;
	CUstream stream;
	unsigned char *pinned;
	unsigned at;    /* the piece that is next */
	uint64_t begun; /* the last copy's number */
	uint64_t marks[2];
	bool in_use;    /* since the last time that it was finished */
	bool refused;   /* so that a move asks once */
	CUresult error; /* the first since then */
	struct piece pieces[PIECES];
};

/* Guards the queue, `busy` and the rings' errors.  */
static OF_PROCESS pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static OF_PROCESS pthread_cond_t piece_came = PTHREAD_COND_INITIALIZER;
static OF_PROCESS pthread_cond_t piece_is_done = PTHREAD_COND_INITIALIZER;
static OF_PROCESS struct piece *first, *last; /* last: where there is a first */
static bool ending;

static OF_PROCESS _Atomic uint64_t pinned_bytes;

static pthread_t threads[MAX_THREADS];
static OF_PROCESS unsigned thread_count, rings_in_use;

/* Copy out of the ring, past the CPU's caches where that is possible: what is written is not read soon, and through the caches
 * each byte of it would be read first. Two processes that change places by their rings, 20 GiB each (H200): 0.62 s instead of
 * 0.80 s. What goes into the ring is written through the caches, from which the GPU reads it: past them it took 0.98 s.  */
static void copy_out(unsigned char *to, const unsigned char *from, size_t bytes)
{
	size_t done = 0;

#ifdef __SSE2__
	for (; done + 64 <= bytes; done += 64)
		for (size_t i = done; i < done + 64; i += 16)
			_mm_stream_si128((__m128i *)(to + i), _mm_load_si128((const __m128i *)(from + i)));
	_mm_sfence();
#endif
	memcpy(to + done, from + done, bytes - done);
}

/* Bring a piece to pinned memory, from host memory or from the disk.  */
static CUresult bring(struct piece *piece)
{
	if (piece->place) {
		if (atomic_load(&gate.dying)) /* no call waits for the disk any more */
			return CUDA_ERROR_NOT_READY;
		return spill_read(piece->place, piece->pinned, piece->bytes) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
	}
	memcpy(piece->pinned, piece->host, piece->bytes);
	return CUDA_SUCCESS;
}

/* Do the thread's part of a piece: copy it out of the ring once the GPU has brought it, or into the ring before the GPU takes
 * it.  */
static CUresult carry(struct piece *piece)
{
	CUresult result;

	if (piece->out) {
		result = driver.cuEventSynchronize(piece->event);
		if (result == CUDA_SUCCESS)
			copy_out(piece->host, piece->pinned, piece->bytes);
		return result;
	}
	/* Where it was copied in last the GPU may still be reading it.  */
	result = driver.cuEventSynchronize(piece->event);
	if (result != CUDA_SUCCESS)
		return result;
	result = bring(piece);
	if (result != CUDA_SUCCESS)
		return result;
	result = driver.cuMemcpyHtoDAsync(piece->device, piece->pinned, piece->bytes, piece->ring->stream);
	return result == CUDA_SUCCESS ? driver.cuEventRecord(piece->event, piece->ring->stream) : result;
}

static void note_error(struct ring *ring, CUresult result)
{
	if (result == CUDA_SUCCESS)
		return;
	pthread_mutex_lock(&queue_lock);
	if (ring->error == CUDA_SUCCESS)
		ring->error = result;
	pthread_mutex_unlock(&queue_lock);
}

static CUresult error_of(struct ring *ring)
{
	CUresult error;

	pthread_mutex_lock(&queue_lock);
	error = ring->error;
	pthread_mutex_unlock(&queue_lock);
	return error;
}

/* Wait for a piece and return the oldest; NULL if the threads are to end.  */
static struct piece *next_piece(void)
{
	struct piece *piece;

	pthread_mutex_lock(&queue_lock);
	while (!first && !ending)
		pthread_cond_wait(&piece_came, &queue_lock);
	piece = first;
	if (piece)
		first = piece->next;
	pthread_mutex_unlock(&queue_lock);
	return piece;
}

static void piece_done(struct piece *piece)
{
	pthread_mutex_lock(&queue_lock);
	piece->busy = false;
	pthread_cond_broadcast(&piece_is_done);
	pthread_mutex_unlock(&queue_lock);
}

static void *thread_main(void *unused)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUcontext current = NULL;
	struct piece *piece;

	(void)unused;
	/* A capture elsewhere must not be broken by what is asked here.  */
	driver.cuThreadExchangeStreamCaptureMode(&mode);
	while ((piece = next_piece()) != NULL) {
		CUresult result = error_of(piece->ring);

		/* After an error the rest is of no use.  */
		if (result == CUDA_SUCCESS && piece->ring->context != current) {
			result = driver.cuCtxSetCurrent(piece->ring->context);
			current = result == CUDA_SUCCESS ? piece->ring->context : NULL;
		}
		if (result == CUDA_SUCCESS)
			result = carry(piece);
		note_error(piece->ring, result);
		piece_done(piece);
	}
	driver.cuCtxSetCurrent(NULL);
	return NULL;
}

/* Start threads: as many as half the CPUs at most, or more for a disk, since they mostly wait for it. They have the mover's
 * signal mask, with all signals blocked. Where no thread can be started the mover does the work.  */
static void start_threads(void)
{
	unsigned n = host_cpus() / 2;

	n = spill_bytes() || n > MAX_THREADS ? MAX_THREADS : n < 1 ? 1 : n;
	ending = false;
	while (thread_count < n && pthread_create(&threads[thread_count], NULL, thread_main, NULL) == 0)
		thread_count++;
}

static void end_threads(void)
{
	pthread_mutex_lock(&queue_lock);
	ending = true;
	pthread_cond_broadcast(&piece_came);
	pthread_mutex_unlock(&queue_lock);
	while (thread_count > 0)
		pthread_join(threads[--thread_count], NULL);
}

static CUresult hand_over(struct piece *piece)
{
	if (thread_count == 0)
		return carry(piece);
	pthread_mutex_lock(&queue_lock);
	piece->busy = true;
	piece->next = NULL;
	if (first)
		last->next = piece;
	else
		first = piece;
	last = piece;
	pthread_cond_signal(&piece_came);
	pthread_mutex_unlock(&queue_lock);
	return CUDA_SUCCESS;
}

static void wait_for_thread(struct piece *piece)
{
	pthread_mutex_lock(&queue_lock);
	while (piece->busy)
		pthread_cond_wait(&piece_is_done, &queue_lock);
	pthread_mutex_unlock(&queue_lock);
}

static CUresult make_pieces(struct ring *ring)
{
	CUresult result = CUDA_SUCCESS;

	for (unsigned i = 0; i < PIECES && result == CUDA_SUCCESS; i++) {
		struct piece *piece = &ring->pieces[i];

		piece->ring = ring;
		piece->pinned = ring->pinned + i * PIECE_BYTES;
		if (!piece->event)
			result = driver.cuEventCreate(&piece->event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
	}
	return result;
}

/* Give a ring's pinned memory back. If the driver refuses, it stays counted, since it is still there.  */
static void unpin(struct ring *ring)
{
	if (driver.cuMemFreeHost(ring->pinned) == CUDA_SUCCESS)
		atomic_fetch_sub(&pinned_bytes, RING_BYTES);
	ring->pinned = NULL;
}

/* Make a ring. Events that were made before the driver refused one are used the next time.  */
static CUresult make(struct ring *ring)
{
	void *pinned = NULL;
	CUresult result = driver.cuMemHostAlloc(&pinned, RING_BYTES, CU_MEMHOSTALLOC_PORTABLE);

	if (result != CUDA_SUCCESS)
		return result;
	ring->pinned = pinned;
	atomic_fetch_add(&pinned_bytes, RING_BYTES);
	result = make_pieces(ring);
	if (result != CUDA_SUCCESS)
		unpin(ring);
	return result;
}

static struct ring *ring_of(struct context *context)
{
	struct ring *ring = context->ring;

	if (!ring) {
		ring = calloc(1, sizeof(*ring));
		if (!ring)
			return NULL;
		ring->context = context->handle;
		ring->stream = context->stream;
		context->ring = ring;
	}
	return ring;
}

bool staging_is_possible(struct context *context)
{
	struct ring *ring = ring_of(context);

	if (!ring || ring->refused)
		return false;
	ring->refused = !ring->pinned && make(ring) != CUDA_SUCCESS;
	return !ring->refused;
}

/* Begin to use a ring: make sure that the GPU does not use its pieces any more.  */
static CUresult begin_use(struct context *context)
{
	struct ring *ring = context->ring;

	if (ring->in_use)
		return CUDA_SUCCESS;
	if (!context_has_copied(context))
		return CUDA_ERROR_UNKNOWN;
	ring->in_use = true;
	if (rings_in_use++ == 0)
		start_threads();
	return CUDA_SUCCESS;
}

static CUresult begin_piece(struct piece *piece)
{
	CUstream stream = piece->ring->stream;
	CUresult result = CUDA_SUCCESS;

	/* What the GPU still copies from it or to it comes before, in the same stream.  */
	if (piece->out) {
		result = driver.cuMemcpyDtoHAsync(piece->pinned, piece->device, piece->bytes, stream);
		if (result == CUDA_SUCCESS)
			result = driver.cuEventRecord(piece->event, stream);
	}
	return result == CUDA_SUCCESS ? hand_over(piece) : result;
}

CUresult staging_copy(const struct stretch *stretch, bool out)
{
	struct ring *ring = stretch->context->ring;
	CUresult result = begin_use(stretch->context);

	for (size_t done = 0; done < stretch->bytes && result == CUDA_SUCCESS; done += PIECE_BYTES) {
		struct piece *piece = &ring->pieces[ring->at];

		ring->at = (ring->at + 1) % PIECES;
		wait_for_thread(piece);
		result = error_of(ring);
		if (result != CUDA_SUCCESS)
			break;
		piece->place = stretch->place ? stretch->place + (uint32_t)(done / CHUNK_BYTES) : 0;
		piece->host = piece->place ? NULL : slot_memory(&stretch->host) + done;
		piece->device = stretch->device + done;
		piece->bytes = stretch->bytes - done < PIECE_BYTES ? stretch->bytes - done : PIECE_BYTES;
		piece->out = out;
		piece->number = ++ring->begun;
		result = begin_piece(piece);
		note_error(ring, result);
	}
	return result;
}

void staging_mark(struct context *context, unsigned mark)
{
	if (context->ring)
		context->ring->marks[mark] = context->ring->begun;
}

CUresult staging_wait_for(struct context *context, unsigned mark)
{
	struct ring *ring = context->ring;
	uint64_t last = ring ? ring->marks[mark] : 0;
	CUresult result;

	if (!ring || !ring->in_use)
		return CUDA_SUCCESS;
	/* One that was begun again since: its thread waits first for what the GPU took from it before.  */
	for (unsigned i = 0; i < PIECES; i++)
		if (ring->pieces[i].number <= last || (!ring->pieces[i].out && ring->pieces[i].number <= last + PIECES))
			wait_for_thread(&ring->pieces[i]);
	result = error_of(ring);
	/* What a thread gave the GPU late is behind the mover's own event in the stream.  */
	for (unsigned i = 0; i < PIECES && result == CUDA_SUCCESS; i++)
		if (ring->pieces[i].number <= last)
			result = driver.cuEventSynchronize(ring->pieces[i].event);
	return result;
}

CUresult staging_finish(struct context *context)
{
	struct ring *ring = context->ring;
	CUresult error;

	if (!ring)
		return CUDA_SUCCESS;
	ring->refused = false;
	if (!ring->in_use)
		return CUDA_SUCCESS;
	for (unsigned i = 0; i < PIECES; i++)
		wait_for_thread(&ring->pieces[i]);
	error = ring->error;
	ring->error = CUDA_SUCCESS;
	ring->in_use = false;
	if (--rings_in_use == 0)
		end_threads();
	return error;
}

uint64_t staging_bytes(void)
{
	return atomic_load(&pinned_bytes);
}

bool staging_trim(void)
{
	if (!contexts_keep())
		return false;
	for (struct context *context = contexts_first(); context; context = context->next) {
		struct ring *ring = context->ring;

		if (ring && ring->pinned && !ring->in_use && context->handle &&
		    driver.cuCtxSetCurrent(context->handle) == CUDA_SUCCESS && context_has_copied(context))
			unpin(ring);
	}
	driver.cuCtxSetCurrent(NULL);
	contexts_let_end();
	return true;
}

/* Where the driver has made that memory unreachable meanwhile the read fails; a write of ours would kill the process.  */
static void fill_from(int file, unsigned char *memory, size_t size)
{
	ssize_t n;

	while (size && (n = read(file, memory, size)) > 0) {
		memory += n;
		size -= (size_t)n;
	}
}

void staging_wipe(void)
{
	int zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);

	if (zeros < 0)
		return;
	if (contexts_keep()) {
		for (struct context *context = contexts_first(); context; context = context->next)
			if (context->handle && context->ring && context->ring->pinned)
				fill_from(zeros, context->ring->pinned, RING_BYTES);
		contexts_let_end();
	}
	close(zeros);
}

void staging_forget(struct context *context)
{
	if (context->ring && context->ring->pinned)
		atomic_fetch_sub(&pinned_bytes, RING_BYTES);
	free(context->ring);
	context->ring = NULL;
}
