/* Hooks that differ only in what they do beside the driver's call.  */
#pragma once

#include "driver/hook.h"
#include "gate/gate.h"
#include "gpu/contexts.h"
#include "link/requests.h"

/* GATED_HOOK(name, CLASS, (parameters), (arguments), before, answer): enter the gate, do `before` (a statement), call the driver, and
 * return `answer`, an expression in which `called` is the driver's result.  */
#define GATED_HOOK(name, class, parameters, arguments, before, answer)                                              \
	static CUresult on_##name(void *real, BARE parameters)                                                      \
	{                                                                                                           \
		GATE_PASS(pass);                                                                                    \
		CUresult called = gate_enter(&pass, AFFINODE_CLASS_##class);                                        \
                                                                                                                    \
		if (called != CUDA_SUCCESS)                                                                         \
			return called;                                                                              \
		before;                                                                                             \
		called = ((CUresult(*) parameters)real)arguments;                                                   \
		return answer;                                                                                      \
	}                                                                                                           \
	HOOK(name, parameters, BARE arguments)

#define NOTHING_BEFORE ((void)0)

/* Ask for room after a call failed for lack of memory, outside the gate, before the program sees it. CUDA_SUCCESS: try again.  */
CUresult after_out_of_memory(uint64_t bytes, struct room_wait *wait);

/* ROOM_HOOK(name, (parameters), (arguments), attempt, room): call `attempt` (of `real` and the arguments) until it succeeds, fails
 * otherwise than for memory, or `room`, which asks for room with `&wait`, says that there will be none.  */
#define ROOM_HOOK(name, parameters, arguments, attempt, room)                                                       \
	static CUresult on_##name(void *real, BARE parameters)                                                      \
	{                                                                                                           \
		for (struct room_wait wait = {0};;) {                                                               \
			CUresult result = attempt(real, BARE arguments);                                            \
                                                                                                                    \
			if (result == CUDA_ERROR_OUT_OF_MEMORY)                                                     \
				result = (room);                                                                    \
			else                                                                                        \
				return result;                                                                      \
			if (result != CUDA_SUCCESS)                                                                 \
				return result;                                                                      \
		}                                                                                                   \
	}                                                                                                           \
	HOOK(name, parameters, BARE arguments)
