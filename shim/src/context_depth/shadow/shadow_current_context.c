/* Each thread's stack of contexts as the driver has it, watched while the driver is there, changed in its stead while it is
 * not, and told to it when the thread next comes in.  */
#include <stdatomic.h>
#include <string.h>

#include "base/log.h"
#include "context_depth/shadow/shadow.h"
#include "driver/real_driver.h"
#include "gate/thread_slots.h"
#include "gpu/contexts.h"

#define STACK_DEPTH 8
#define MAX_CHANGES 8

enum change { SET, PUSH, POP };

/* All zero in a new thread: an empty stack, which is what it has.  */
struct thread_shadow {
	bool begun;
	bool unknown;        /* nothing is known */
	bool bottom_unknown; /* nothing is known of what is under `stack` */
	uint8_t depth;
	uint32_t generation;
	CUcontext stack[STACK_DEPTH];
	uint8_t changes;
	enum change change[MAX_CHANGES];
	CUcontext changed_to[MAX_CHANGES];
	int mode, driver_mode; /* of stream captures, cuThreadExchangeStreamCaptureMode */
};

static __thread struct thread_shadow mine __attribute__((tls_model("initial-exec")));
static _Atomic uint32_t generation;

void shadows_forget_contexts(void)
{
	atomic_fetch_add(&generation, 1);
}

static bool known(void)
{
	uint32_t now = atomic_load(&generation);

	if (!mine.begun) {
		mine.begun = true;
		mine.generation = now;
	}
	return mine.generation == now && !mine.unknown;
}

/* Begin to follow a thread of which only its current context is known.  */
static void begin_with(CUcontext context)
{
	mine.begun = true;
	mine.generation = atomic_load(&generation);
	mine.unknown = false;
	mine.bottom_unknown = context != NULL; /* only an empty stack has none current */
	mine.depth = context ? 1 : 0;
	mine.stack[0] = context;
}

bool shadows_current(CUcontext *context)
{
	if (!known() || (mine.depth == 0 && mine.bottom_unknown))
		return false;
	*context = mine.depth ? mine.stack[mine.depth - 1] : NULL;
	return true;
}

static void push(CUcontext context)
{
	if (mine.depth == STACK_DEPTH) {
		memmove(mine.stack, mine.stack + 1, (STACK_DEPTH - 1) * sizeof(mine.stack[0]));
		mine.depth--;
		mine.bottom_unknown = true;
	}
	mine.stack[mine.depth++] = context;
}

void shadows_saw_current(CUcontext context)
{
	CUcontext believed;

	if (!shadows_current(&believed) || believed != context)
		begin_with(context);
}

void shadows_saw_pop(CUcontext context)
{
	CUcontext believed;

	if (shadows_current(&believed) && believed == context && mine.depth)
		mine.depth--;
	else
		mine.unknown = true;
}

void shadows_saw_set(CUcontext context)
{
	CUcontext believed;

	if (!context && shadows_current(&believed))
		mine.depth -= mine.depth ? 1 : 0;
	else if (!context)
		mine.unknown = true;
	else if (!shadows_current(&believed))
		begin_with(context);
	else if (mine.depth)
		mine.stack[mine.depth - 1] = context;
	else
		push(context);
}

void shadows_saw_push(CUcontext context)
{
	if (known())
		push(context);
	else
		begin_with(context);
}

void shadows_saw_mode(int mode)
{
	mine.mode = mine.driver_mode = mode;
}

/* Have the thread's calls take the slow way into the gate from now on, where the driver is told first what was made current.  */
static void fall_behind(void)
{
	if (!shadows_behind)
		slot_put_aside();
	shadows_behind = true;
}

static bool note(enum change change, CUcontext context)
{
	int last = mine.changes - 1;

	if (last >= 0 && change == SET && mine.change[last] != POP) {
		mine.changed_to[last] = context;
	} else if (last >= 0 && change == POP && mine.change[last] == PUSH) {
		mine.changes--;
	} else if (last >= 0 && change == POP && mine.change[last] == SET) {
		mine.change[last] = POP;
	} else {
		if (mine.changes == MAX_CHANGES)
			return false;
		mine.change[mine.changes] = change;
		mine.changed_to[mine.changes++] = context;
	}
	fall_behind();
	return true;
}

CUresult shadows_pop(CUcontext *context)
{
	CUcontext current;

	if (!shadows_current(&current) || (mine.depth == 1 && mine.bottom_unknown))
		return SHADOW_NONE;
	if (!mine.depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!note(POP, NULL))
		return SHADOW_NONE;
	mine.depth--;
	if (context)
		*context = current;
	return CUDA_SUCCESS;
}

CUresult shadows_push(CUcontext context)
{
	if (!known() || mine.depth == STACK_DEPTH || !context_known(context) || !note(PUSH, context))
		return SHADOW_NONE;
	push(context);
	return CUDA_SUCCESS;
}

CUresult shadows_set(CUcontext context)
{
	CUcontext current;

	if (!shadows_current(&current))
		return SHADOW_NONE;
	if (current == context)
		return CUDA_SUCCESS;
	if (!context)
		return shadows_pop(NULL);
	if (!mine.depth)
		return shadows_push(context);
	if (!context_known(context) || !note(SET, context))
		return SHADOW_NONE;
	mine.stack[mine.depth - 1] = context;
	return CUDA_SUCCESS;
}

CUresult shadows_exchange_mode(int *mode)
{
	int before = mine.mode;

	if (!mode || *mode < 0 || *mode > 2)
		return CUDA_ERROR_INVALID_VALUE;
	mine.mode = *mode;
	*mode = before;
	if (mine.mode != mine.driver_mode)
		fall_behind();
	return CUDA_SUCCESS;
}

static CUresult tell(enum change change, CUcontext context)
{
	CUcontext popped;

	switch (change) {
	case SET:
		return driver.cuCtxSetCurrent(context);
	case PUSH:
		return driver.cuCtxPushCurrent(context);
	default:
		return driver.cuCtxPopCurrent(&popped);
	}
}

void shadows_tell_driver(void)
{
	CUresult result = CUDA_SUCCESS;
	int mode = mine.mode;

	shadows_behind = false;
	slot_take_back();
	for (unsigned i = 0; i < mine.changes && result == CUDA_SUCCESS; i++)
		result = tell(mine.change[i], mine.changed_to[i]);
	if (result != CUDA_SUCCESS) {
		log_line("a thread's current context could not be set again: %d", result);
		mine.unknown = true;
	}
	mine.changes = 0;
	if (mode != mine.driver_mode && driver.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS)
		mine.driver_mode = mine.mode;
}

/* The child of a fork has this thread alone, and no CUDA.  */
void shadows_begin_again(void)
{
	memset(&mine, 0, sizeof(mine));
	if (shadows_behind)
		slot_take_back();
	shadows_behind = false;
}
