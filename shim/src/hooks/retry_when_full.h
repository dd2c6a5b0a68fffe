/* Try again, once there is room, what failed for lack of memory.  */
#pragma once

#include "gpu/contexts.h"
#include "link/requests.h"

/* Out of memory is asked about, outside the gate, before the program sees it: CUDA_SUCCESS, try again.  */
CUresult after_out_of_memory(uint64_t bytes, struct room_wait *wait);

/* A hook's whole body: runs `attempt_once` (an expression) until it succeeds, fails otherwise than for memory, or no
 * room will be made.  */
#define WITH_ROOM(bytes, attempt_once)                                                                              \
	for (struct room_wait wait = {0};;) {                                                                       \
		CUresult result = (attempt_once);                                                                   \
		if (result != CUDA_ERROR_OUT_OF_MEMORY)                                                             \
			return result;                                                                              \
		result = after_out_of_memory((bytes), &wait);                                                       \
		if (result != CUDA_SUCCESS)                                                                         \
			return result;                                                                              \
	}
