#include "mover.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "blocks.h"
#include "clock.h"
#include "contexts.h"
#include "driver.h"
#include "gate.h"
#include "gpu_lock.h"
#include "link.h"
#include "log.h"
#include "mappings.h"
#include "page.h"
#include "shim.h"

#define DRAIN_NS (100 * MS_NS)
#define PIECE_BYTES (32ull << 20)
#define HOLD_POLL_NS (200 * 1000ull)

/* Held while a move is under way, and by those who must keep one from beginning.  */
static pthread_mutex_t work_lock = PTHREAD_MUTEX_INITIALIZER;

static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queue_changed = PTHREAD_COND_INITIALIZER;
static struct move next_move;
static bool move_waits, move_runs, outcome_waits;
static struct moved outcome;

static struct arena arena;
static unsigned waiting_at_start;
static uint64_t activity_at_start;

/* The bounded wait for the GPU at a closed gate. ARMED by the mover; whoever swaps it out of ARMED decides.  */
enum { WAIT_NONE, WAIT_ARMED, WAIT_REVOKED };
static _Atomic int bounded_wait;
static _Atomic uint64_t bounded_wait_ns;

uint64_t mover_wait_deadline_ns(void)
{
	return atomic_load(&bounded_wait) == WAIT_ARMED ? atomic_load(&bounded_wait_ns) : 0;
}

bool mover_revoke_wait(void)
{
	int armed = WAIT_ARMED;

	if (!atomic_compare_exchange_strong(&bounded_wait, &armed, WAIT_REVOKED))
		return false;
	gate_open();
	return true;
}

static void outcome_is(struct moved *moved, enum affinode_status status, const char *text)
{
	moved->status = status;
	snprintf(moved->text, sizeof(moved->text), "%s", text);
}

static uint64_t calls_made(void)
{
	uint64_t calls[AFFINODE_CLASSES], sum = 0;

	gate_sum_calls(calls);
	for (int i = AFFINODE_CLASS_LAUNCH; i < AFFINODE_CLASSES; i++)
		sum += calls[i];
	return sum;
}

/* Somebody came back: with the gate open, any call; with the gate closed, one that waits.  */
static bool somebody_came(void)
{
	return atomic_load(&gate.dying) || gate_calls_waiting() > waiting_at_start || calls_made() != activity_at_start;
}

/* Wait for every context at the closed gate, DRAIN_NS at most: beyond that the link thread opens the gate, since
 * whatever the GPU waits for may be waiting at it. Streams were seen idle, so this is nearly always at once; it covers
 * the per-thread default streams, which no other thread can ask about.  */
static bool synchronise_bounded(void)
{
	int armed = WAIT_ARMED;
	bool done;

	atomic_store(&bounded_wait_ns, clock_ns() + DRAIN_NS);
	atomic_store(&bounded_wait, WAIT_ARMED);
	link_wake();
	done = gpu_synchronise();
	if (!atomic_compare_exchange_strong(&bounded_wait, &armed, WAIT_NONE)) {
		atomic_store(&bounded_wait, WAIT_NONE);
		return false;
	}
	if (!done)
		gate_open();
	return done;
}

/* Close the gate with the GPU idle behind it; on failure it is open again and *why says what was in the way.  */
static int close_gate_on_idle_gpu(const char **why)
{
	*why = gpu_busy();
	if (*why)
		return -EBUSY;
	if (gate_close(DRAIN_NS) != 0) {
		*why = "a CUDA call is in progress";
		return -EBUSY;
	}
	/* A capture or a launch may have begun between the look and the closing.  */
	*why = gpu_busy();
	if (*why) {
		gate_open();
		return -EBUSY;
	}
	if (!synchronise_bounded()) {
		*why = "the GPU is still computing";
		return -EBUSY;
	}
	return 0;
}

static bool all_contexts_ready(void)
{
	for (struct context *context = contexts_first(); context; context = context->next)
		if (context->handle && !context->ready && blocks_resident_bytes())
			return false;
	return true;
}

/* Copy one block, piece by piece; CUDA_ERROR_NOT_READY: somebody came back.  */
static CUresult copy_block(struct block *block, bool out)
{
	CUstream stream = block->context->stream;
	CUresult result = CUDA_SUCCESS;

	if (!block->context->handle || driver.cuCtxSetCurrent(block->context->handle) != CUDA_SUCCESS)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t at = 0; at < block->size && result == CUDA_SUCCESS; at += PIECE_BYTES) {
		size_t piece = block->size - at < PIECE_BYTES ? block->size - at : PIECE_BYTES;

		if (out && somebody_came())
			return CUDA_ERROR_NOT_READY;
		if (out)
			result = driver.cuMemcpyDtoHAsync(block->host + at, block->address + at, piece, stream);
		else
			result = driver.cuMemcpyHtoDAsync(block->address + at, block->host + at, piece, stream);
		if (result == CUDA_SUCCESS)
			result = driver.cuStreamSynchronize(stream);
	}
	return result;
}

/* Everything to the arena; nothing on the GPU is touched.  */
static CUresult copy_all_out(struct block **list, size_t count, uint64_t *bytes)
{
	CUresult result = CUDA_SUCCESS;

	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
		if (!list[i]->resident)
			continue;
		list[i]->host = arena_take(&arena, list[i]->mapped);
		result = list[i]->host ? copy_block(list[i], true) : CUDA_ERROR_OUT_OF_MEMORY;
		*bytes += list[i]->size;
	}
	return result;
}

/* Touch the host memory while the application still runs.  */
static enum affinode_status prepare_host_memory(size_t bytes)
{
	int error = arena_map(&arena, bytes);

	if (!error)
		error = arena_touch(&arena, bytes, somebody_came);
	if (!error)
		return AFFINODE_OK;
	arena_unmap(&arena);
	return error == -EAGAIN ? AFFINODE_REVOKED : AFFINODE_NO_HOST_ROOM;
}

/* At the closed gate with the GPU idle: copy out, then give the memory back. What was copied is released only when
 * everything was copied.  */
static void park_at_closed_gate(struct moved *moved)
{
	struct block **list;
	CUresult result;
	size_t count;

	list = blocks_list(&count);
	if (!list) {
		outcome_is(moved, AFFINODE_NO_HOST_ROOM, "host memory is short");
		goto reopen;
	}
	shim_move_state(AFFINODE_STATE_RESIDENT, AFFINODE_STATE_PARKING);
	result = copy_all_out(list, count, &moved->bytes);
	if (result != CUDA_SUCCESS) {
		for (size_t i = 0; i < count; i++)
			if (list[i]->resident)
				list[i]->host = NULL;
		if (result == CUDA_ERROR_NOT_READY)
			outcome_is(moved, AFFINODE_REVOKED, "a CUDA call came while parking");
		else if (result == CUDA_ERROR_OUT_OF_MEMORY)
			outcome_is(moved, AFFINODE_REVOKED, "memory was allocated while parking");
		else
			outcome_is(moved, AFFINODE_FAILED, "the driver could not copy the GPU's memory out");
		goto reopen;
	}
	for (size_t i = 0; i < count; i++) {
		if (!list[i]->resident || !list[i]->host)
			continue;
		driver.cuCtxSetCurrent(list[i]->context->handle);
		if (block_unmap(list[i]) != CUDA_SUCCESS)
			list[i]->host = NULL; /* still there and still right: it stays */
	}
	free(list);
	blocks_reap(false);
	driver.cuCtxSetCurrent(NULL);
	blocks_changed();
	shim_move_state(AFFINODE_STATE_PARKING, AFFINODE_STATE_PARKED);
	outcome_is(moved, AFFINODE_OK, "");
	return;
reopen:
	free(list);
	arena_unmap(&arena);
	blocks_reap(false);
	driver.cuCtxSetCurrent(NULL);
	shim_move_state(AFFINODE_STATE_PARKING, AFFINODE_STATE_RESIDENT);
	gate_open();
}

static void park(struct moved *moved)
{
	const char *why = NULL;
	enum affinode_status status;
	size_t bytes = blocks_resident_bytes();

	if (shim_state() != AFFINODE_STATE_RESIDENT)
		return outcome_is(moved, AFFINODE_NOTHING, "already parked");
	if (bytes == 0)
		return outcome_is(moved, AFFINODE_NOTHING, "no GPU memory that can be moved");
	if (shim_is_unparkable())
		return outcome_is(moved, AFFINODE_FAILED, "this process cannot be parked");
	if (!all_contexts_ready())
		return outcome_is(moved, AFFINODE_BUSY, "a CUDA context is not ready to be copied from");
	waiting_at_start = gate_calls_waiting();
	activity_at_start = calls_made();
	why = gpu_busy();
	if (why)
		return outcome_is(moved, AFFINODE_BUSY, why);
	status = prepare_host_memory(bytes);
	if (status != AFFINODE_OK)
		return outcome_is(moved, status,
				  status == AFFINODE_REVOKED ? "a CUDA call came while parking" : "host memory is short");
	shim_register_exit(); /* before: an exit that begins while the gate is closed must not wait at it */
	if (close_gate_on_idle_gpu(&why) != 0) {
		arena_unmap(&arena);
		return outcome_is(moved, AFFINODE_BUSY, why);
	}
	park_at_closed_gate(moved);
}

/* Physical memory for every parked block, mapped; all or nothing.  */
static CUresult create_all(struct block **list, size_t count)
{
	CUresult result = CUDA_SUCCESS;
	size_t i;

	for (i = 0; i < count && result == CUDA_SUCCESS; i++) {
		if (list[i]->resident)
			continue;
		result = !list[i]->context->handle ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
		if (result == CUDA_SUCCESS)
			result = driver.cuCtxSetCurrent(list[i]->context->handle);
		if (result == CUDA_SUCCESS)
			result = block_create(list[i]);
		if (result != CUDA_SUCCESS)
			break;
		result = block_map(list[i]);
		if (result != CUDA_SUCCESS)
			driver.cuMemRelease(list[i]->handle);
		else
			block_set_resident(list[i], true);
	}
	return result;
}

/* Undo create_all: the host copies are untouched.  */
static void release_all(struct block **list, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (list[i]->resident && list[i]->host)
			block_unmap(list[i]);
}

static CUresult copy_all_in(struct block **list, size_t count, uint64_t *bytes)
{
	CUresult result = CUDA_SUCCESS;

	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
		if (!list[i]->host)
			continue;
		result = copy_block(list[i], false);
		*bytes += list[i]->size;
	}
	return result;
}

static void resume_blocks(struct moved *moved, struct block **list, size_t count)
{
	CUresult result = create_all(list, count);

	if (result == CUDA_SUCCESS)
		result = copy_all_in(list, count, &moved->bytes);
	if (result != CUDA_SUCCESS) {
		release_all(list, count);
		if (result == CUDA_ERROR_OUT_OF_MEMORY)
			outcome_is(moved, AFFINODE_NO_GPU_ROOM, "the GPU is full");
		else
			outcome_is(moved, AFFINODE_FAILED, "the driver could not bring the memory back; it is kept");
		return;
	}
	for (size_t i = 0; i < count; i++)
		list[i]->host = NULL;
	outcome_is(moved, AFFINODE_OK, "");
}

static void resume(struct moved *moved)
{
	struct block **list;
	size_t count;

	if (!shim_move_state(AFFINODE_STATE_PARKED, AFFINODE_STATE_RESUMING) &&
	    !shim_move_state(AFFINODE_STATE_QUEUED, AFFINODE_STATE_RESUMING))
		return outcome_is(moved, AFFINODE_NOTHING, "not parked");
	list = blocks_list(&count);
	if (!list)
		outcome_is(moved, AFFINODE_FAILED, "host memory is short");
	else if (moved->move.alone && !gpu_lock_all())
		outcome_is(moved, AFFINODE_NO_GPU_ROOM, "another kernel is resuming");
	else
		resume_blocks(moved, list, count);
	gpu_unlock_all();
	free(list);
	blocks_reap(false);
	driver.cuCtxSetCurrent(NULL);
	if (moved->status != AFFINODE_OK) {
		shim_move_state(AFFINODE_STATE_RESUMING, AFFINODE_STATE_PARKED);
		return;
	}
	arena_unmap(&arena);
	blocks_changed();
	shim_move_state(AFFINODE_STATE_RESUMING, AFFINODE_STATE_RESIDENT);
	gate_open();
}

static void carry_out(struct moved *moved)
{
	uint64_t begin = clock_ns();

	if (moved->move.deadline_ns && begin > moved->move.deadline_ns) {
		outcome_is(moved, AFFINODE_STALE, "the command came too late");
		return;
	}
	pthread_mutex_lock(&work_lock);
	mappings_choose_contexts();
	if (moved->move.command == AFFINODE_COMMAND_PARK)
		park(moved);
	else
		resume(moved);
	pthread_mutex_unlock(&work_lock);
	moved->duration_ns = clock_ns() - begin;
	if (moved->status == AFFINODE_OK)
		page_note_move(moved->move.command == AFFINODE_COMMAND_PARK, moved->bytes, moved->duration_ns);
	log_line("%s: status %d, %llu bytes in %.1f ms %s",
		 moved->move.command == AFFINODE_COMMAND_PARK ? "park" : "resume", moved->status,
		 (unsigned long long)moved->bytes, (double)moved->duration_ns / 1e6, moved->text);
}

static void *mover_main(void *unused)
{
	struct moved moved;

	(void)unused;
	for (;;) {
		pthread_mutex_lock(&queue_lock);
		while (!move_waits)
			pthread_cond_wait(&queue_changed, &queue_lock);
		memset(&moved, 0, sizeof(moved));
		moved.move = next_move;
		move_waits = false;
		pthread_mutex_unlock(&queue_lock);
		carry_out(&moved);
		pthread_mutex_lock(&queue_lock);
		move_runs = false;
		outcome = moved;
		outcome_waits = true;
		pthread_mutex_unlock(&queue_lock);
		link_wake();
	}
	return NULL;
}

int mover_start(void)
{
	sigset_t all, before;
	pthread_t thread;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&thread, NULL, mover_main, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -error;
}

int mover_submit(const struct move *move)
{
	int error = 0;

	pthread_mutex_lock(&queue_lock);
	if (move_runs || outcome_waits) {
		error = -EBUSY;
	} else {
		next_move = *move;
		move_waits = move_runs = true;
		pthread_cond_signal(&queue_changed);
	}
	pthread_mutex_unlock(&queue_lock);
	return error;
}

bool mover_take_outcome(struct moved *moved)
{
	bool taken;

	pthread_mutex_lock(&queue_lock);
	taken = outcome_waits;
	if (taken)
		*moved = outcome;
	outcome_waits = false;
	pthread_mutex_unlock(&queue_lock);
	return taken;
}

/* Not a plain lock: the mover may be waiting for work on the GPU that ends only after the calling thread's next step, and
 * then the link thread opens the gate.  */
bool mover_hold(struct gate_pass *pass)
{
	while (!gate_try_enter(pass, AFFINODE_CLASS_FREE)) {
		if (pthread_mutex_trylock(&work_lock) == 0)
			return true;
		clock_sleep_ns(HOLD_POLL_NS);
	}
	return false;
}

void mover_let_go(void)
{
	pthread_mutex_unlock(&work_lock);
}

void mover_reap(void)
{
	if (pthread_mutex_trylock(&work_lock) != 0)
		return; /* it reaps when it is done */
	blocks_reap(!gate_is_closed());
	pthread_mutex_unlock(&work_lock);
}

void mover_quiesce(uint64_t ns)
{
	uint64_t until = clock_ns() + ns;

	while (pthread_mutex_trylock(&work_lock) != 0) {
		if (clock_ns() > until)
			return;
		clock_sleep_ns(MS_NS);
	}
	pthread_mutex_unlock(&work_lock);
}

void mover_reset_in_child(void)
{
	pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
	pthread_cond_t fresh_cond = PTHREAD_COND_INITIALIZER;

	memcpy(&work_lock, &fresh, sizeof(fresh));
	memcpy(&queue_lock, &fresh, sizeof(fresh));
	memcpy(&queue_changed, &fresh_cond, sizeof(fresh_cond));
	move_waits = move_runs = outcome_waits = false;
	memset(&arena, 0, sizeof(arena)); /* not in the child's address space: MADV_DONTFORK */
	atomic_store(&bounded_wait, WAIT_NONE);
}
