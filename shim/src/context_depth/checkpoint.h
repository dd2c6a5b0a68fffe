/* Context depth: when the mover has parked the memory, the driver's own checkpoint of this process takes what is left, the
 * CUDA context, and the GPU no longer knows the process.
 *
 * Asked for by AFFINODE_DEPTH=context alone. The driver's Restore on a GPU without room loses the process, so it is called
 * only with the GPU's lock held and the room seen to be free, and where either cannot be had the process stays parked.  */
#ifndef AFFINODE_CHECKPOINT_H
#define AFFINODE_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol.h"

/* AFFINODE_DEPTH=context: decided at the first look, before any wrapper is handed out.  */
bool checkpoint_is_asked(void);

/* Whether this process may be parked that deep, as far as is known now.  */
bool checkpoint_is_possible(void);

/* The driver holds the process: no call of the driver comes back, ours neither.  */
bool checkpoint_is_out(void);

/* Find the driver's functions and who asks NVML; on the application's thread, at its start.  */
void checkpoint_start(void);

/* Something was done that the driver's checkpoint does not bear, or the shim cannot see through: never, from now on.  */
void checkpoint_refuse(const char *why);

/* By the mover, while the driver answers: what stands in the way of it; NULL: nothing yet.  */
const char *checkpoint_objection(void);

/* By the mover, parked and with the gate closed: take the context off the GPU. On failure the process is where it was, at
 * memory depth, and `why` says what was in the way.  */
enum affinode_status checkpoint_out(char *why, size_t size);

/* By the mover, before it takes memory for a resume; AFFINODE_OK also if there is nothing to do. `to`: the UUID of the GPU to
 * come back on, NULL: where it was. AFFINODE_NO_GPU_ROOM, AFFINODE_REFUSED: the process is parked as before. After AFFINODE_OK
 * the GPU's lock is held until checkpoint_has_room is called.  */
enum affinode_status checkpoint_in(const uint8_t *to, char *why, size_t size);

/* The resume has its memory, or has failed: others may take theirs.  */
void checkpoint_has_room(void);

void checkpoint_reset_in_child(void);

#endif
