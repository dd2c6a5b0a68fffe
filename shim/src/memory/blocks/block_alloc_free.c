/* A block's life: made for cuMemAlloc, ended at once or when the mover and stream captures allow it.  */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/per_process.h"
#include "driver/real_driver.h"
#include "gate/gate.h"
#include "host/host_copy.h"
#include "memory/blocks/block_internal.h"
#include "state/shim_state.h"

static bool is_never_copying(void)
{
	return false;
}

static void frees_nothing(void)
{
}

static void shares_nothing(CUdeviceptr address)
{
	(void)address;
}

static const struct block_users no_users = {is_never_copying, frees_nothing, frees_nothing, shares_nothing}, *users = &no_users;
static OF_PROCESS struct block *_Atomic doomed;
/* High, so that it never meets an id the driver gave to its own memory.  */
static _Atomic uint64_t next_id = 1ull << 40;

void blocks_set_users(const struct block_users *now)
{
	users = now;
}

uint64_t block_new_id(void)
{
	return atomic_fetch_add(&next_id, 1);
}

static CUresult block_reserve_and_map(struct block *block)
{
	CUresult result = driver.cuMemAddressReserve(&block->address, block->mapped, 0, 0, 0);

	if (result != CUDA_SUCCESS)
		return result;
	result = block_create(block);
	if (result == CUDA_SUCCESS) {
		result = block_map(block);
		if (result == CUDA_SUCCESS) {
			block->resident = true;
			return CUDA_SUCCESS;
		}
		if (block_unmap(block) != CUDA_SUCCESS)
			return result; /* the address is lost with what is mapped there */
	}
	driver.cuMemAddressFree(block->address, block->mapped);
	return result;
}

static struct block *block_new(struct context *context, size_t size, size_t mapped)
{
	struct block *block = calloc(1, sizeof(*block));

	if (!block)
		return NULL;
	block->context = context;
	block->size = size;
	block->mapped = mapped;
	block->id = block_new_id();
	if (block_cut_in_parts(block) != 0) {
		free(block);
		return NULL;
	}
	return block;
}

static void block_forget(struct block *block)
{
	copy_drop(block->copy);
	free(block->handles);
	free(block);
}

CUresult block_allocate(size_t size, CUdeviceptr *address)
{
	struct context *context = context_current();
	size_t granularity, mapped;
	struct block *block;
	CUresult result;
	uint32_t peers;

	if (!context || !context->device->can_map || shim_is_unparkable())
		return CUDA_ERROR_NOT_SUPPORTED;
	granularity = context->device->granularity;
	mapped = (size + granularity - 1) / granularity * granularity;
	block = block_new(context, size, mapped);
	if (!block)
		return CUDA_ERROR_NOT_SUPPORTED;
	context_make_ready(context);
	peers = context->device->peers;
	result = mapped < size ? CUDA_ERROR_OUT_OF_MEMORY : block_reserve_and_map(block);
	if (result == CUDA_SUCCESS && blocks_insert(block) != 0) {
		block_unmap(block);
		driver.cuMemAddressFree(block->address, mapped);
		result = CUDA_ERROR_NOT_SUPPORTED;
	}
	if (result != CUDA_SUCCESS) {
		block_forget(block);
		return result;
	}
	if (context->device->peers != peers) /* between its mapping and its place in the table */
		block_set_access(block, 0);
	*address = block->address;
	return CUDA_SUCCESS;
}

CUresult block_import(const CUmemGenericAllocationHandle *handles, unsigned parts, size_t size, size_t mapped,
		      CUdeviceptr *address)
{
	struct context *context = context_current();
	struct block *block = context ? block_new(context, size, mapped) : NULL;
	CUresult result;

	if (!block)
		return context ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_CONTEXT;
	context_make_ready(context);
	block->shared = block->imported = true;
	if (block_parts(block) != parts) {
		block_forget(block);
		return CUDA_ERROR_INVALID_VALUE;
	}
	block->parts_created = parts;
	memcpy(block_handles(block), handles, parts * sizeof(*handles));
	result = driver.cuMemAddressReserve(&block->address, mapped, 0, 0, 0);
	if (result == CUDA_SUCCESS) {
		result = block_map(block);
		block->resident = true;
		if (result == CUDA_SUCCESS && blocks_insert(block) != 0)
			result = CUDA_ERROR_OUT_OF_MEMORY;
		if (result != CUDA_SUCCESS && block_unmap_parts(block) == CUDA_SUCCESS)
			driver.cuMemAddressFree(block->address, mapped);
	}
	if (result != CUDA_SUCCESS) {
		block_forget(block);
		return result;
	}
	*address = block->address;
	return CUDA_SUCCESS;
}

/* Unmap, release and forget a block that is not used any more.  */
static void block_destroy(struct block *block)
{
	if (block->shared) {
		users->shared_block_ends(block->address);
		block_forget_sync_memops(block);
	}
	if (block->parts_created && block_unmap(block) != CUDA_SUCCESS) {
		/* The context may be gone or broken; the address stays reserved so that nothing else lands there.  */
		log_line("cuMemUnmap failed for %zu bytes at %llx", block->mapped, block->address);
		block_forget(block);
		return;
	}
	driver.cuMemAddressFree(block->address, block->mapped);
	block_forget(block);
}

bool blocks_wait_to_be_freed(void)
{
	return atomic_load_explicit(&doomed, memory_order_relaxed) != NULL;
}

static void synchronise_context(CUcontext handle)
{
	CUcontext current = NULL;

	driver.cuCtxGetCurrent(&current);
	if (current != handle && driver.cuCtxPushCurrent(handle) != CUDA_SUCCESS)
		return;
	driver.cuCtxSynchronize();
	if (current != handle)
		driver.cuCtxPopCurrent(&current);
}

/* Wait for the work that may use the memory, as cuMemFree does: in the block's own context, and in those of devices that can
 * reach it.  */
static void synchronise_users(const struct block *block)
{
	uint32_t peers = block->context->device->peers;
	CUcontext own = block->context->handle;

	if (own)
		synchronise_context(own);
	for (struct context *context = peers ? contexts_first() : NULL; context; context = context->next) {
		CUcontext handle = context->handle;

		if (handle && handle != own && context->device->ordinal < 32 &&
		    (peers & (1u << context->device->ordinal)))
			synchronise_context(handle);
	}
}

void blocks_reap(bool synchronise)
{
	struct block *list;

	if (!blocks_wait_to_be_freed())
		return;
	pthread_mutex_lock(&blocks_lock);
	list = doomed;
	doomed = NULL;
	pthread_mutex_unlock(&blocks_lock);
	while (list) {
		struct block *block = list;

		list = block->next_doomed;
		if (synchronise && block->resident)
			synchronise_users(block);
		block_destroy(block);
	}
	blocks_changed();
}

void blocks_give_up_doomed_copies(void)
{
	struct copy *list = NULL;
	uint64_t taken = 0;

	if (!blocks_wait_to_be_freed())
		return;
	pthread_mutex_lock(&blocks_lock);
	for (struct block *block = doomed; block; block = block->next_doomed)
		copy_take(&block->copy, &list, &taken);
	pthread_mutex_unlock(&blocks_lock);
	copies_drop(list);
}

static bool block_end(CUdeviceptr address, bool imported)
{
	GATE_PASS(pass);
	bool open = gate_try_enter(&pass, AFFINODE_CLASS_FREE);
	/* A synchronise would break an open capture; then it is freed when the last one has ended. And the mover may be
	 * reading the block: it frees it when it is done.  */
	bool now = open && !captures_open() && !users->is_copying();
	struct block *block;

	/* From the table to the doomed list in one step: between the two, a resume would neither bring the block back
	 * nor end it, and its host copy would outlive the memory it is in.  */
	pthread_mutex_lock(&blocks_lock);
	block = blocks_take(address, imported);
	if (block && !now) {
		block->next_doomed = doomed;
		doomed = block;
	}
	pthread_mutex_unlock(&blocks_lock);
	if (!block)
		return false;
	blocks_changed();
	if (now) {
		blocks_reap(true);
		synchronise_users(block);
		block_destroy(block);
	} else if (!captures_open()) {
		users->reap();
	}
	if (!now)
		users->wake(); /* it ends what is left when the capture has ended, or the GPU is idle */
	return true;
}

bool block_free(CUdeviceptr address)
{
	return block_end(address, false);
}

bool block_end_import(CUdeviceptr address)
{
	return block_end(address, true);
}

void blocks_drop_context(CUcontext handle)
{
	struct block *dropped;

	pthread_mutex_lock(&blocks_lock);
	dropped = blocks_take_context(handle);
	pthread_mutex_unlock(&blocks_lock);
	while (dropped) {
		struct block *block = dropped;

		dropped = block->next_doomed;
		block_destroy(block);
	}
	blocks_changed();
}
