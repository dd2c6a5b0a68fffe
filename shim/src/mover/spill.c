/* Parked contents go to disk, lot by lot. A chunk is in host memory until it has been written; only then its place in the file is
 * what counts. So whatever ends a spill, each chunk is in one of the two.  */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/monotonic_futex.h"
#include "gate/gate.h"
#include "host/host_copy.h"
#include "host/spill_file.h"
#include "memory/blocks/block.h"
#include "mover/internal.h"
#include "mover/retained_memory.h"
#include "state/controller.h"
#include "state/shim_state.h"

#define CHUNKS_AT_ONCE 128 /* 256 MiB: a tenth of a second on a fast disk */
#define ASIDE_NS MS_NS

/* The chunks that are being written.  */
static struct {
	struct chunk *chunks[CHUNKS_AT_ONCE];
	uint32_t places[CHUNKS_AT_ONCE];
	bool written[CHUNKS_AT_ONCE];
	size_t count;
	_Atomic size_t next;
	_Atomic int error;
} batch;

static unsigned waiting_at_start;

/* The process is wanted back, or about to end. A controller that has a process spilled although a call waits knows of that one;
 * without a controller it is to be resumed at once.  */
static bool must_end(void)
{
	return gate_calls_waiting() > (link_is_connected() ? waiting_at_start : 0) || atomic_load(&gate.dying) ||
	       mover_is_aborted();
}

/* By address, as slots are given out: a lot can be given back only when all of its slabs are empty.  */
static int by_address(const void *a, const void *b)
{
	const unsigned char *one = slot_memory(&(*(struct chunk *const *)a)->slot);
	const unsigned char *other = slot_memory(&(*(struct chunk *const *)b)->slot);

	return one < other ? -1 : one > other;
}

static bool is_parked(const struct block *block)
{
	return block->copy && (!block->resident || block->hollow);
}

/* What can be spilled: what is wrong when it comes back must be seen to be. NULL: nothing, or no memory.  */
static struct chunk **spillable(size_t *count)
{
	struct chunk **chunks = NULL;
	struct block **blocks;
	size_t n, most = 0;

	*count = 0;
	blocks = blocks_list(&n);
	for (size_t i = 0; blocks && i < n; i++)
		most += is_parked(blocks[i]) ? blocks[i]->copy->count : 0;
	if (most)
		chunks = malloc(most * sizeof(struct chunk *));
	for (size_t i = 0; chunks && i < n; i++) {
		struct copy *copy = is_parked(blocks[i]) ? blocks[i]->copy : NULL;

		for (size_t at = 0; copy && at < copy->count; at++)
			if (copy->chunks[at].kind == CHUNK_HELD && copy->chunks[at].digested &&
			    chunk_size(copy, at) == CHUNK_BYTES)
				chunks[(*count)++] = &copy->chunks[at];
	}
	free(blocks);
	if (chunks)
		qsort(chunks, *count, sizeof(struct chunk *), by_address);
	return chunks;
}

static void *write_chunks(void *unused)
{
	size_t i;

	(void)unused;
	/* A free that waits for the mover ends it too, for the moment.  */
	while (!atomic_load(&batch.error) && !must_end() && !mover_has_holders() &&
	       (i = atomic_fetch_add(&batch.next, 1)) < batch.count) {
		int error = spill_write(batch.places[i], slot_memory(&batch.chunks[i]->slot));

		batch.written[i] = error == 0;
		if (error)
			atomic_store(&batch.error, error);
	}
	return NULL;
}

static void write_all(void)
{
	pthread_t threads[SPILL_THREADS - 1];
	unsigned started = 0;

	while (started < SPILL_THREADS - 1 && pthread_create(&threads[started], NULL, write_chunks, NULL) == 0)
		started++;
	write_chunks(NULL);
	while (started > 0)
		pthread_join(threads[--started], NULL);
}

/* Write the next chunks, `most` bytes at most, and give their slots back. Bytes written; *error: what the disk said.  */
static uint64_t spill_next(uint64_t most, int *error)
{
	uint64_t bytes = 0;
	struct chunk **chunks;
	size_t count;

	memset(&batch, 0, sizeof(batch));
	pthread_mutex_lock(&mover_work_lock);
	chunks = spillable(&count);
	while (batch.count < count && batch.count < CHUNKS_AT_ONCE && (batch.count + 1) * CHUNK_BYTES <= most) {
		uint32_t place = spill_take();

		if (!place)
			break;
		batch.places[batch.count] = place;
		batch.chunks[batch.count] = chunks[batch.count];
		batch.count++;
	}
	free(chunks);
	write_all();
	for (size_t i = 0; i < batch.count; i++) {
		if (!batch.written[i]) {
			spill_give(batch.places[i]);
			continue;
		}
		chunk_to_disk(batch.chunks[i], batch.places[i]);
		bytes += CHUNK_BYTES;
	}
	kept_give_back_freed();
	pthread_mutex_unlock(&mover_work_lock);
	*error = atomic_load(&batch.error);
	return bytes;
}

/* Of a resident process: forget what is kept on disk for the next park.  */
static uint64_t forget_kept(void)
{
	uint64_t before = spill_bytes();
	struct block **blocks;
	size_t n;

	pthread_mutex_lock(&mover_work_lock);
	blocks = blocks_list(&n);
	for (size_t i = 0; blocks && i < n; i++)
		for (size_t at = 0; !is_parked(blocks[i]) && blocks[i]->copy && at < blocks[i]->copy->count; at++)
			if (blocks[i]->copy->chunks[at].kind == CHUNK_SPILLED)
				chunk_drop(&blocks[i]->copy->chunks[at]);
	free(blocks);
	pthread_mutex_unlock(&mover_work_lock);
	return before - spill_bytes();
}

void spill(struct moved *moved)
{
	uint64_t bytes = 1;
	int error;

	if (!shim_is_parked()) {
		moved->bytes = forget_kept();
		return outcome_is(moved, moved->bytes ? AFFINODE_OK : AFFINODE_NOTHING, "");
	}
	waiting_at_start = gate_calls_waiting();
	error = spill_open(moved->move.folder, moved->text, sizeof(moved->text));
	if (error) {
		moved->status = AFFINODE_FAILED;
		return;
	}
	while (bytes && !error && !must_end()) {
		bytes = spill_next(moved->move.budget - moved->bytes, &error);
		moved->bytes += bytes;
		link_wake(); /* the page, and lots that have ended */
		while (mover_has_holders() && !must_end()) {
			clock_sleep_ns(ASIDE_NS);
			bytes = 1; /* it goes on */
		}
	}
	if (must_end())
		return outcome_is(moved, AFFINODE_REVOKED, "the kernel is wanted back");
	if (!error)
		return outcome_is(moved, moved->bytes ? AFFINODE_OK : AFFINODE_NOTHING, "");
	moved->status = AFFINODE_FAILED;
	snprintf(moved->text, sizeof(moved->text), "freed GPU memory could not be written to disk: %s", error == -ENOSPC || error == -EDQUOT || error == -EFBIG ? "there is no room" : strerror(-error));
}
