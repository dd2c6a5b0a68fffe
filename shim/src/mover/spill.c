/* Parked contents go to disk, lot by lot, and back into host memory. A chunk is in host memory until it has been written; only then
 * its place in the file is what counts. On the way back it is on disk until it has been read. So whatever ends either, each chunk is
 * in one of the two. In the same way chunks go to packs in host memory, which other processes of the user have, too.  */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/growable.h"
#include "base/log.h"
#include "base/monotonic_futex.h"
#include "gate/gate.h"
#include "gpu/contexts.h"
#include "gpu/gpu_lock.h"
#include "host/bounce_ring.h"
#include "host/host_copy.h"
#include "host/lent_memory.h"
#include "host/memory_limits.h"
#include "host/packs/memory_packs.h"
#include "host/packs/spill_file.h"
#include "memory/blocks/block.h"
#include "mover/internal.h"
#include "mover/retained_memory.h"
#include "state/controller.h"
#include "state/depth.h"
#include "state/shim_state.h"

#define CHUNKS_AT_ONCE 512 /* the disk rests between two batches */
#define SPILL_AT_ONCE (128 * CHUNK_BYTES) /* host memory is needed, or wanted: a tenth of a second on a fast disk */
#define ASIDE_NS MS_NS

/* The chunks that are being written, or read.  */
static struct {
	struct chunk *chunks[CHUNKS_AT_ONCE];
	uint32_t places[CHUNKS_AT_ONCE];
	struct host_slot slots[CHUNKS_AT_ONCE]; /* to read into */
	struct hint hints[CHUNKS_AT_ONCE]; /* where they are to be shared */
	int (*move)(size_t i);
	bool (*ends)(void);
	bool moved[CHUNKS_AT_ONCE];
	size_t count;
	_Atomic size_t next;
	_Atomic int error;
} batch;

static unsigned waiting_at_start;
static bool all_must_go; /* also what other processes have in host memory: no memory comes free of that */

/* The process is wanted back, or about to end. A controller that has a process spilled although a call waits knows of that one;
 * without a controller it is to be resumed at once.  */
static bool spill_must_end(void)
{
	return gate_calls_waiting() > (link_is_connected() ? waiting_at_start : 0) || atomic_load(&gate.dying) ||
	       mover_is_aborted();
}

/* Calls that wait want it to go on.  */
static bool reading_must_end(void)
{
	return !link_is_connected() || atomic_load(&gate.dying) || mover_is_aborted();
}

/* By address, as slots are given out: a lot can be given back only when all of its slabs are empty.  */
static int by_address(const void *a, const void *b)
{
	const struct chunk *first = *(struct chunk *const *)a, *second = *(struct chunk *const *)b;
	const unsigned char *one = chunk_has_slot(first) ? slot_memory(&first->slot) : NULL;
	const unsigned char *other = chunk_has_slot(second) ? slot_memory(&second->slot) : NULL;

	if (!one && !other)
		return first->place < second->place ? -1 : first->place > second->place;
	return !one || !other ? !one - !other : one < other ? -1 : one > other;
}

static bool is_parked(const struct block *block)
{
	return block->copy && (!block->resident || block->hollow);
}

static bool is_in_slot(const struct copy *copy, size_t at)
{
	/* What is wrong when it comes back must be seen to be.  */
	return copy->chunks[at].kind == CHUNK_HELD && copy->chunks[at].digested && chunk_size(copy, at) == CHUNK_BYTES;
}

static bool is_spillable(const struct copy *copy, size_t at)
{
	const struct chunk *chunk = &copy->chunks[at];

	return is_in_slot(copy, at) || (chunk->kind == CHUNK_SPILLED && spill_is_in_memory(chunk->place) &&
					(all_must_go || memory_packs_is_sole(chunk->place)));
}

static bool is_on_disk(const struct copy *copy, size_t at)
{
	return chunk_is_on_disk(&copy->chunks[at]);
}

/* Those of parked contents that `are`. NULL: none, or no memory.  */
static struct chunk **chunks_that(bool (*are)(const struct copy *, size_t), size_t *count)
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
			if (are(copy, at))
				chunks[(*count)++] = &copy->chunks[at];
	}
	free(blocks);
	return chunks;
}

static void *move_chunks(void *unused)
{
	size_t i;

	(void)unused;
	/* A free that waits for the mover ends it too, for the moment.  */
	while (!atomic_load(&batch.error) && !batch.ends() && !mover_has_holders() &&
	       (i = atomic_fetch_add(&batch.next, 1)) < batch.count) {
		int error = batch.move(i);

		batch.moved[i] = error == 0;
		if (error)
			atomic_store(&batch.error, error);
	}
	return NULL;
}

static void move_all(int (*move)(size_t), bool (*ends)(void))
{
	pthread_t threads[SPILL_THREADS - 1];
	unsigned started = 0;

	batch.move = move;
	batch.ends = ends;
	atomic_store(&batch.next, 0);
	memset(batch.moved, 0, sizeof(batch.moved));
	while (started < SPILL_THREADS - 1 && pthread_create(&threads[started], NULL, move_chunks, NULL) == 0)
		started++;
	move_chunks(NULL);
	while (started > 0)
		pthread_join(threads[--started], NULL);
}

static int write_from_pack(size_t i)
{
	void *contents = mmap(NULL, CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int error = contents == MAP_FAILED ? -ENOMEM : spill_read(batch.chunks[i]->place, contents, CHUNK_BYTES);

	if (!error)
		error = spill_write(&batch.places[i], contents, NULL);
	if (contents != MAP_FAILED)
		munmap(contents, CHUNK_BYTES);
	return error;
}

static int write_one(size_t i)
{
	if (batch.chunks[i]->kind == CHUNK_SPILLED)
		return write_from_pack(i);
	return spill_write(&batch.places[i], slot_memory(&batch.chunks[i]->slot), NULL);
}

/* Make what was written SPILLED, and return its bytes.  */
static uint64_t take_places(void)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < batch.count; i++) {
		if (!batch.places[i])
			continue;
		if (!batch.moved[i]) {
			spill_give(batch.places[i]);
			continue;
		}
		chunk_to_place(batch.chunks[i], batch.places[i]);
		bytes += CHUNK_BYTES;
	}
	return bytes;
}

/* Begin a batch, with the mover's work locked until its end: the chunks of parked contents that `are`, by address, `most` bytes at
 * most, without the `passed` first ones.  */
static void batch_begin(bool (*are)(const struct copy *, size_t), size_t passed, uint64_t most)
{
	struct chunk **chunks;
	size_t count;

	memset(&batch, 0, sizeof(batch));
	pthread_mutex_lock(&mover_work_lock);
	chunks = chunks_that(are, &count);
	if (chunks)
		qsort(chunks, count, sizeof(struct chunk *), by_address);
	for (size_t i = passed; i < count && batch.count < CHUNKS_AT_ONCE && (batch.count + 1) * CHUNK_BYTES <= most; i++)
		batch.chunks[batch.count++] = chunks[i];
	free(chunks);
}

/* Return what was in the way, or 0.  */
static int batch_end(void)
{
	retained_give_back_freed();
	pthread_mutex_unlock(&mover_work_lock);
	return atomic_load(&batch.error);
}

/* Write the next chunks, `most` bytes at most, and give their slots back. Bytes written; *error: what the disk said.  */
static uint64_t write_next(uint64_t most, int *error)
{
	uint64_t bytes;
	size_t taken = 0;

	batch_begin(is_spillable, 0, most);
	while (taken < batch.count && (batch.places[taken] = spill_take()) != 0)
		taken++;
	batch.count = taken;
	move_all(write_one, spill_must_end);
	spill_publish();
	bytes = take_places();
	*error = batch_end();
	return bytes;
}

static uint64_t spill_next(uint64_t most, int *error)
{
	return write_next(most < SPILL_AT_ONCE ? most : SPILL_AT_ONCE, error);
}

/* Only the GPU can compute digests, and the place on the disk is given up: so it must read the same twice.  */
static int read_one(size_t i)
{
	unsigned char *memory = slot_memory(&batch.slots[i]);
	void *again = mmap(NULL, CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int error = again == MAP_FAILED ? -ENOMEM : spill_read(batch.places[i], memory, CHUNK_BYTES);

	if (!error)
		error = spill_read(batch.places[i], again, CHUNK_BYTES);
	if (!error && memcmp(memory, again, CHUNK_BYTES) != 0)
		error = -EIO;
	if (again != MAP_FAILED)
		munmap(again, CHUNK_BYTES);
	return error;
}

/* Slots for `want` chunks, or for as many as host memory allows; how many.  */
static size_t take_slots(size_t want)
{
	struct slab_order order = {.slots = want, .budget = UINT64_MAX, .node = -1, .stop = reading_must_end};
	size_t n = 0, run;

	if (!contexts_keep()) /* one is being ended, and slabs are registered anew in those that live on */
		return 0;
	slabs_make(&order); /* what is there counts */
	contexts_let_end();
	while (n < want && (run = slots_take(want - n, &batch.slots[n])) > 0) {
		for (size_t i = 1; i < run; i++)
			batch.slots[n + i] = (struct host_slot){batch.slots[n].slab, batch.slots[n].index + (unsigned)i};
		n += run;
	}
	return n;
}

/* Read the next chunks, `most` bytes at most. Bytes read; *error: what the disk said, or -ENOMEM.  */
static uint64_t read_next(uint64_t most, int *error)
{
	uint64_t bytes = 0;
	size_t want;

	batch_begin(is_on_disk, 0, most < SPILL_AT_ONCE ? most : SPILL_AT_ONCE);
	want = batch.count;
	batch.count = want ? take_slots(want) : 0;
	for (size_t i = 0; i < batch.count; i++)
		batch.places[i] = batch.chunks[i]->place;
	move_all(read_one, reading_must_end);
	for (size_t i = 0; i < batch.count; i++) {
		if (!batch.moved[i]) {
			slot_give(&batch.slots[i]);
			continue;
		}
		chunk_from_disk(batch.chunks[i], &batch.slots[i]);
		bytes += CHUNK_BYTES;
	}
	*error = batch_end();
	if (want && !batch.count)
		*error = -ENOMEM;
	return bytes;
}

static void forget_places_of(struct copy **copy, void *in_memory)
{
	for (size_t at = 0; at < (*copy)->count; at++) {
		struct chunk *chunk = &(*copy)->chunks[at];

		if (chunk->kind == CHUNK_SPILLED && spill_is_in_memory(chunk->place) == *(bool *)in_memory)
			chunk_drop(chunk);
	}
}

void forget_places(bool in_memory)
{
	blocks_see_retained_copies(forget_places_of, &in_memory);
}

/* Of a resident process: forget what is kept on disk for the next park.  */
static uint64_t forget_kept(void)
{
	uint64_t before = spill_bytes();

	pthread_mutex_lock(&mover_work_lock);
	forget_places(false);
	pthread_mutex_unlock(&mover_work_lock);
	return before - spill_bytes();
}

/* Batch after batch, until the order is done or something ends it. What the disk said.  */
static int move_on(struct moved *moved, uint64_t (*next)(uint64_t, int *), bool (*ends)(void))
{
	uint64_t bytes = 1;
	int error = 0;

	while (bytes && !error && !ends()) {
		bytes = next(moved->move.budget - moved->bytes, &error);
		moved->bytes += bytes;
		link_wake(); /* the page, and lots that have ended */
		while (mover_has_holders() && !ends()) {
			clock_sleep_ns(ASIDE_NS);
			bytes = 1; /* it goes on */
		}
	}
	return error;
}

static void ended(struct moved *moved, int error, const char *what)
{
	if (!error)
		return outcome_is(moved, moved->bytes ? AFFINODE_OK : AFFINODE_NOTHING, NO_REASON);
	moved->status = AFFINODE_FAILED;
	snprintf(moved->text, sizeof(moved->text), "freed GPU memory could not be %s: %s", what,
		 error == -ENOSPC || error == -EDQUOT || error == -EFBIG ? "there is no room" : strerror(-error));
}

void spill(struct moved *moved)
{
	int error;

	if (!shim_is_parked()) {
		moved->bytes = forget_kept();
		return outcome_is(moved, moved->bytes ? AFFINODE_OK : AFFINODE_NOTHING, NO_REASON);
	}
	waiting_at_start = gate_calls_waiting();
	all_must_go = false;
	if (spill_open(moved->move.folder, moved->text, sizeof(moved->text))) {
		moved->status = AFFINODE_FAILED;
		return;
	}
	error = move_on(moved, spill_next, spill_must_end);
	if (spill_must_end())
		return outcome_is(moved, AFFINODE_REVOKED, REASON_WANTED_BACK);
	ended(moved, error, "written to disk");
}

/* The hints of what stays the process's own.  */
static struct {
	struct hint *hints;
	size_t count, room;
} offers;

static void offer(const struct hint *hint)
{
	if (array_has_room(offers.hints, offers.count, offers.room)) /* else it is offered another time */
		offers.hints[offers.count++] = *hint;
}

static int find_hint(size_t i)
{
	batch.hints[i] = pack_hint(slot_memory(&batch.chunks[i]->slot));
	return 0;
}

static int share_one(size_t i)
{
	return batch.places[i] ? spill_write(&batch.places[i], slot_memory(&batch.chunks[i]->slot), &batch.hints[i]) : 0;
}

/* Choose the places of what others have or offer, or of all of it, in order; what is not looked at in time stays as it is.  */
static void choose_shared(bool all)
{
	for (size_t i = 0; i < batch.count; i++) {
		if (!batch.moved[i])
			continue;
		if (all || memory_packs_want(&batch.hints[i]))
			batch.places[i] = spill_take();
		if (!batch.places[i])
			offer(&batch.hints[i]);
	}
}

/* Share what can be of the next chunks after the `passed` first ones, which stay the process's own; or put all of them into packs. Bytes that now
 * lie in packs; *error: what was in the way, or -ENODATA after the last chunk.  */
static uint64_t share_next(bool all, size_t *passed, int *error)
{
	uint64_t bytes;

	batch_begin(is_in_slot, *passed, UINT64_MAX);
	move_all(find_hint, spill_must_end);
	choose_shared(all);
	for (size_t i = 0; i < batch.count; i++)
		*passed += batch.moved[i] && !batch.places[i];
	move_all(share_one, spill_must_end);
	spill_publish();
	bytes = take_places();
	*error = batch_end();
	if (!batch.count)
		*error = -ENODATA;
	return bytes;
}

/* A batch is there twice until its slots are given back. Where there is no room for that nothing is shared.  */
static bool has_room_to_share(void)
{
	return host_memory_left() > HOST_MEMORY_RESERVE + CHUNKS_AT_ONCE * CHUNK_BYTES;
}

/* Batch after batch, until nothing is left or something ends it. Return 0 or what was in the way.  */
static int share_on(struct moved *moved, bool all)
{
	size_t passed = 0;
	int error = 0;

	while (!error && !spill_must_end() && has_room_to_share()) {
		moved->copied += share_next(all, &passed, &error);
		link_wake(); /* the page, and lots that have ended */
		while (mover_has_holders() && !spill_must_end())
			clock_sleep_ns(ASIDE_NS);
	}
	return error == -ENODATA ? 0 : error;
}

/* Return whether what is left of the process's own keeps lots that are mostly empty: a lot is given back only as a whole.  */
static bool lots_are_wasted(void)
{
	return memory_packs_bytes() && lots_bytes() > slots_bytes() + slots_bytes() / 8 + 2 * SLAB_BYTES;
}

void share(struct moved *moved)
{
	uint64_t written;
	int error;

	if (!shim_is_parked())
		return outcome_is(moved, AFFINODE_NOTHING, REASON_NOT_FREED);
	waiting_at_start = gate_calls_waiting();
	error = memory_packs_begin(moved->move.folder, moved->move.budget, moved->text, sizeof(moved->text));
	if (error) {
		moved->status = error == -EBUSY ? AFFINODE_BUSY : error == -EEXIST ? AFFINODE_REFUSED : AFFINODE_FAILED;
		return;
	}
	offers.count = 0;
	written = memory_packs_written();
	error = share_on(moved, false);
	moved->bytes = memory_packs_written() - written;
	if (!error && lots_are_wasted())
		error = share_on(moved, true);
	memory_packs_offer(offers.hints, offers.count);
	memory_packs_done();
	if (spill_must_end())
		return outcome_is(moved, AFFINODE_REVOKED, REASON_WANTED_BACK);
	if (error)
		return ended(moved, error, "shared in host memory");
	outcome_is(moved, AFFINODE_OK, NO_REASON);
}

/* The context follows the memory, unless it is off the GPU already. A process that had no memory to move goes on where its context cannot
 * leave.  */
static bool leave_gpu(struct moved *moved)
{
	bool was_parked = shim_is_parked(), leaves;

	pthread_mutex_lock(&mover_work_lock);
	leaves = was_parked || park_empty(moved);
	if (leaves && !checkpoint_is_out()) {
		moved->status = depth_moves->out(true, moved->text, sizeof(moved->text));
		leaves = moved->status == AFFINODE_OK;
		if (!leaves && !was_parked)
			resume_empty();
	}
	pthread_mutex_unlock(&mover_work_lock);
	return leaves;
}

void hibernate(struct moved *moved)
{
	int error;

	if (shim_state() == AFFINODE_STATE_NONE)
		return outcome_is(moved, AFFINODE_OK, NO_REASON);
	waiting_at_start = gate_calls_waiting();
	all_must_go = true;
	moved->move.budget = UINT64_MAX;
	if (!leave_gpu(moved))
		return;
	if (spill_into_image(moved->move.folder, moved->text, sizeof(moved->text))) {
		moved->status = AFFINODE_FAILED;
		return;
	}
	error = move_on(moved, write_next, spill_must_end);
	spill_tidy();
	if (spill_must_end())
		return outcome_is(moved, AFFINODE_REVOKED, REASON_WANTED_BACK);
	if (error)
		return ended(moved, error, "written to disk");
	gpu_locks_close();
	memory_packs_leave();
	if (memory_packs_bytes() || !lots_let_go())
		return outcome_is(moved, AFFINODE_FAILED, REASON_LOTS_IN_USE);
	staging_wipe(); /* a park has no time for that */
	outcome_is(moved, AFFINODE_OK, NO_REASON);
}

void read_back(struct moved *moved)
{
	int error;

	if (!shim_is_parked() || checkpoint_is_out())
		return outcome_is(moved, AFFINODE_NOTHING, NO_REASON);
	error = move_on(moved, read_next, reading_must_end);
	if (reading_must_end())
		return outcome_is(moved, AFFINODE_REVOKED, REASON_CALLED_OFF);
	if (error == -ENOMEM)
		return outcome_is(moved, moved->bytes ? AFFINODE_OK : AFFINODE_NO_HOST_ROOM, REASON_HOST_MEMORY_SHORT);
	ended(moved, error, "read from disk");
}
