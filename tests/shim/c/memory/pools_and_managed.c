/* Memory that is not ours to move, and how it leaves the GPU all the same: what pools only keep is given back, managed memory
 * is sent to the host. By parking, and, where the shim is part of the program, by the mover's calls one by one.  */
#include "board.h"
#include "harness.h"

#define KEPT MiB(64)
#define USED MiB(6)
#define RELEASE_THRESHOLD 4

static size_t free_bytes(void)
{
	CUDA(CtxSetCurrent(cuda_context));
	return cuda_free_bytes();
}

/* A pool that keeps everything it was given, as frameworks set it up.  */
static void keep_all(CUmemoryPool pool)
{
	uint64_t everything = UINT64_MAX;

	CUDA(MemPoolSetAttribute(pool, RELEASE_THRESHOLD, &everything));
}

static CUdeviceptr use_and_keep(CUmemoryPool pool)
{
	CUdeviceptr kept, used;

	if (pool) {
		CUDA(MemAllocFromPoolAsync(&used, USED, pool, NULL));
		CUDA(MemAllocFromPoolAsync(&kept, KEPT, pool, NULL));
	} else {
		CUDA(MemAllocAsync(&used, USED, NULL));
		CUDA(MemAllocAsync(&kept, KEPT, NULL));
	}
	CHECK_EQUAL(launch_pattern(NULL, used, USED, 9), CUDA_SUCCESS);
	CUDA(MemFreeAsync(kept, NULL));
	CUDA(CtxSynchronize());
	return used;
}

/* Parked, all of it is off the GPU; back, it is where it was and counts again.  */
static void through_a_park(void)
{
	CUdeviceptr block, used, moving;
	size_t before, parked;

	block = cuda_block(MiB(2), 3);
	CUDA(MemAllocManaged(&moving, USED, 1));
	CUDA(MemPrefetchAsync(moving, USED, 0, NULL));
	CHECK_EQUAL(launch_pattern(NULL, moving, USED, 4), CUDA_SUCCESS);
	used = use_and_keep(NULL);
	before = free_bytes();
	controller_park();
	parked = free_bytes();
	CHECK_EQUAL(parked - before, MiB(2) + USED + KEPT);
	CHECK_EQUAL(page_read().gpus[0].unmovable_bytes[AFFINODE_UNMOVABLE_MANAGED], 0);
	CHECK_EQUAL(page_read().gpus[0].unmovable_bytes[AFFINODE_UNMOVABLE_POOL], USED);
	CHECK_RESUMES();
	CHECK_EQUAL(page_read().gpus[0].unmovable_bytes[AFFINODE_UNMOVABLE_MANAGED], USED);
	CHECK(holds_pattern(block, MiB(2), 3, 0));
	CHECK(holds_pattern(moving, USED, 4, 0));
	CHECK(holds_pattern(used, USED, 9, 0));

	/* Freed while it is out.  */
	controller_park();
	CUDA(MemFree(moving));
	PAGE_UNTIL(page.gpus[0].unmovable_bytes[AFFINODE_UNMOVABLE_MANAGED] == 0);
	CHECK_RESUMES();
	CHECK_EQUAL(page_read().gpus[0].unmovable_bytes[AFFINODE_UNMOVABLE_MANAGED], 0);
	CUDA(MemFreeAsync(used, NULL));
	CUDA(MemFree(block));
}

static CUmemoryPool current_pool;

static void destroy(void)
{
	CUDA(MemPoolDestroy(current_pool));
}

/* The device's current pool is one of the program's, and is ended while a park trims it: that waits until the trim is done.  */
static void the_current_pool_ends(void)
{
	const CUmemPoolProps properties = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUresult (*set_current)(CUdevice, CUmemoryPool);
	CUdeviceptr block, used;
	struct call call;
	uint32_t park;

	*(void **)&set_current = cuda_symbol("cuDeviceSetMemPool");
	CHECK(set_current != NULL);
	CUDA(MemPoolCreate(&current_pool, &properties));
	keep_all(current_pool);
	CHECK_EQUAL(set_current(0, current_pool), CUDA_SUCCESS);
	CUDA(MemAlloc(&block, MiB(2)));
	used = use_and_keep(NULL);
	CUDA(MemFreeAsync(used, NULL));
	CUDA(CtxSynchronize());
	do {
		board_arm("cuMemPoolTrimTo:HOLD:2"); /* the first is the default pool's */
		park = controller_command(AFFINODE_COMMAND_PARK, 0);
	} while (!board_holds_in(park)); /* this machine is too slow for the mover's patience */
	call_begin(&call, destroy);
	CHECK(call_waits(&call));
	board_disarm();
	call_end(&call);
	CHECK_EQUAL(controller_reply(park).status, AFFINODE_OK);
	CHECK_RESUMES();
	CUDA(MemFree(block));
}

#ifdef SHIM_LINKED
#include "memory/managed_memory.h"
#include "memory/pool_trim.h"

static _Atomic bool stop_making_pools;
static unsigned pieces_left;

static uint64_t trim(void)
{
	uint64_t bytes = pools_trim();

	CUDA(CtxSetCurrent(cuda_context));
	return bytes;
}

static void trims(CUmemoryPool pool)
{
	size_t before = free_bytes(), kept;
	CUdeviceptr used = use_and_keep(pool);

	kept = free_bytes();
	CHECK_EQUAL(before - kept, USED + KEPT);
	CHECK_EQUAL(trim(), KEPT);
	CHECK_EQUAL(free_bytes() - kept, KEPT);
	CHECK(holds_pattern(used, USED, 9, 0));
	CHECK_EQUAL(trim(), 0);
	CUDA(MemFreeAsync(used, NULL));
	CUDA(CtxSynchronize());
	CHECK_EQUAL(trim(), USED);
	CHECK_EQUAL(free_bytes(), before);
}

static CUmemoryPool make_pool(void)
{
	const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemoryPool pool;

	CUDA(MemPoolCreate(&pool, &props));
	keep_all(pool);
	return pool;
}

static void *make_and_destroy_pools(void *unused)
{
	(void)unused;
	CUDA(CtxSetCurrent(cuda_context));
	while (!atomic_load(&stop_making_pools)) {
		CUmemoryPool pools[3];
		CUdeviceptr at;

		for (int i = 0; i < 3; i++)
			pools[i] = make_pool();
		CUDA(MemAllocFromPoolAsync(&at, MiB(2), pools[1], NULL));
		CUDA(MemFreeAsync(at, NULL));
		CUDA(CtxSynchronize());
		for (int i = 0; i < 3; i++)
			CUDA(MemPoolDestroy(pools[i]));
	}
	return NULL;
}

static void a_pool_may_go_at_any_moment(void)
{
	pthread_t thread;

	thread_start(&thread, make_and_destroy_pools, NULL);
	for (int i = 0; i < 300; i++)
		trim();
	atomic_store(&stop_making_pools, true);
	thread_join(thread);
	CHECK_EQUAL(trim(), 0);
}

static bool no_more_pieces(void)
{
	return pieces_left-- == 0;
}

static uint64_t send_out(bool (*stop)(void))
{
	uint64_t bytes = managed_prefetch_out(stop);

	CUDA(CtxSetCurrent(cuda_context));
	return bytes;
}

static void managed(void)
{
	CUdeviceptr at[3], large;
	size_t before = free_bytes();

	for (uint32_t i = 0; i < 3; i++) {
		CUDA(MemAllocManaged(&at[i], MiB(4 + 2 * i), 1));
		CUDA(MemPrefetchAsync(at[i], MiB(4 + 2 * i), 0, NULL));
		CHECK_EQUAL(launch_pattern(NULL, at[i], MiB(4 + 2 * i), 20 + i), CUDA_SUCCESS);
	}
	CUDA(CtxSynchronize());
	CHECK_EQUAL(before - free_bytes(), MiB(18));
	PAGE_UNTIL(page.gpus[0].unmovable_bytes[AFFINODE_UNMOVABLE_MANAGED] == MiB(18));
	CHECK_EQUAL(managed_bytes(), MiB(18));
	CHECK_EQUAL(send_out(NULL), MiB(18));
	CHECK_EQUAL(free_bytes(), before);
	CHECK_EQUAL(managed_bytes_out(0), 0); /* it may have been touched again: the gate is open */
	for (uint32_t i = 0; i < 3; i++)
		CHECK(holds_pattern(at[i], MiB(4 + 2 * i), 20 + i, 0));
	CUDA(MemFree(at[1]));
	CHECK_EQUAL(managed_bytes(), MiB(12));
	CHECK_EQUAL(send_out(NULL), MiB(12));

	/* In pieces, so that a call does not wait for all of it.  */
	CUDA(MemAllocManaged(&large, MiB(600), 1));
	CHECK_EQUAL(send_out(NULL), MiB(612));
	pieces_left = 2;
	CHECK(send_out(no_more_pieces) < MiB(612));
	CHECK_EQUAL(pieces_left, (unsigned)-1);
	CUDA(MemFree(large));
	CUDA(MemFree(at[0]));
	CUDA(MemFree(at[2]));
	CHECK_EQUAL(managed_bytes(), 0);
	CHECK_EQUAL(send_out(NULL), 0);
}

static void call_by_call(void)
{
	CUmemoryPool pool;

	trim();
	trims(NULL);
	pool = make_pool();
	trims(pool);
	CUDA(MemPoolDestroy(pool));
	CHECK_EQUAL(trim(), 0);
	a_pool_may_go_at_any_moment();
	managed();
}
#endif

int main(int argc, char **argv)
{
	CUmemoryPool by_default;
	CUdeviceptr block;

	board_begin(argc, argv, 60);
	CUDA(MemAlloc(&block, MiB(2))); /* makes the context ready */
	CUDA(MemFree(block));
	CUDA(DeviceGetDefaultMemPool(&by_default, 0));
	keep_all(by_default);
	through_a_park();
	the_current_pool_ends();
#ifdef SHIM_LINKED
	CUDA(MemAlloc(&block, MiB(2)));
	call_by_call();
#endif
	return 0;
}
