/* Gated thunks: one bound to each driver pointer that a caller ever resolved. Names that this build has never heard of
 * get wide ones.  */
#include "driver/real_driver.h"
#include "driver/thunk_pool.h"
#include "gate/gate.h"
#include "gpu/contexts.h"
#include "hooks/call_thunks.h"
#include "memory/blocks/block.h"

/* Of `what`, above the class: a copy or fill that is not asynchronous by its name.  */
#define SETTLES 0x100u

/* Keep the promise of SYNC_MEMOPS: the call returns when its work is done, whatever it copies.  */
static __attribute__((noinline)) void settle(CUresult result)
{
	if (result != CUDA_SUCCESS || captures_open())
		return;
	driver.cuStreamSynchronize(CU_STREAM_LEGACY);
	driver.cuStreamSynchronize(CU_STREAM_PER_THREAD);
}

/* One function serves all thunks: as a part of each it would be compiled a thousand times, and calls would be no faster.  */
static __attribute__((noinline)) W call_int(const struct thunk_target *target, INT_PARAMETERS)
{
	GATE_PASS(pass);
	CUresult refused = gate_enter_named(&pass, (uint8_t)target->what, &target->name);
	W result;

	if (unlikely(refused != CUDA_SUCCESS))
		return (W)refused;
	result = ((int_fn)target->real)(INT_ARGUMENTS);
	if (unlikely(target->what & SETTLES) && blocks_have_sync_memops())
		settle((CUresult)result);
	return result;
}

static __attribute__((noinline)) W call_wide(const struct thunk_target *target, WIDE_PARAMETERS)
{
	GATE_PASS(pass);
	CUresult refused = gate_enter_named(&pass, (uint8_t)target->what, &target->name);
	if (unlikely(refused != CUDA_SUCCESS))
		return (W)refused;
	return ((wide_fn)target->real)(WIDE_ARGUMENTS);
}

INT_POOL(TIMES_1024)
WIDE_POOL(TIMES_256)

void *thunk_for(void *real, int class_, bool wide, bool settles, const char *name)
{
	return thunk_bind(wide ? &wide_pool : &int_pool, real, (unsigned)class_ | (settles ? SETTLES : 0), name);
}
