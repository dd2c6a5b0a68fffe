/* The driver's checkpoint of this process. Its Restore on a GPU without room loses the process, so it is called only with the GPU's
 * lock held and the room seen to be free, and where either cannot be had the process stays parked.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol.h"
#include "state/depth.h"

/* By the mover, while the driver answers: what stands in the way of it; NO_REASON: nothing yet.  */
enum reason checkpoint_objection(void);

/* By the mover, parked and with the gate closed: take the context off the GPU. `ends`: the process ends afterwards. On failure it is
 * where it was, at memory depth, and `why` says what was in the way.  */
enum affinode_status checkpoint_out(bool ends, char *why, size_t size);

/* By the mover, before it takes memory for a resume; AFFINODE_OK also if there is nothing to do. `to`: the UUID of the GPU to
 * come back on, NULL: where it was. AFFINODE_NO_GPU_ROOM, AFFINODE_REFUSED: the process is parked as before. After AFFINODE_OK
 * the GPU's lock is held until gpu_unlock_all.  */
enum affinode_status checkpoint_in(const uint8_t *to, char *why, size_t size);
