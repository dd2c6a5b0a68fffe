/* The GPUs' locks: a file a GPU in the folder of the sockets, held by flock(2) by a process that needs room that stays
 * free.
 *
 * Exclusively: a process that resumes without a controller, so that two of them take turns; and one that brings a
 * CUDA context back, from the look at the free memory until it has what it needs, because the driver's Restore
 * loses a process that meets a full GPU. Shared: our processes while they take memory from the driver, large
 * allocations and contexts alone. The files exist only where a process may ever hold one exclusively; where none
 * is, an allocation costs a look at a cached answer, and where one is, a few system calls beside the driver's tens
 * of microseconds.  */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "gpu/devices.h"

/* Lock all of this process's GPUs exclusively, or none: 0, also if they are held already, or -EBUSY; never blocks. Where no lock
 * file can be had it succeeds: taking memory is all or nothing at memory depth, so the lock only keeps two from failing
 * in turn.  */
int gpu_lock_all(void);

/* Lock that GPU alone exclusively, whatever was held before, and only where its file is there for others to heed: 0 or -EBUSY; never
 * blocks. 0 without a file, too: gpu_lock_is_held says.  */
int gpu_lock_other(const uint8_t gpu[16]);

void gpu_unlock_all(void);

/* Whether this GPU's lock really is held by one of the above.  */
bool gpu_lock_is_held(const uint8_t gpu[16]);

/* Make the lock files, so that other processes begin to heed them: 0, or a negative errno if one of this process's GPUs has
 * none.  */
int gpu_locks_make(void);

/* The same for any GPU.  */
int gpu_lock_make(const uint8_t gpu[16]);

/* Whether any of this process's GPUs has a lock file, as of a second ago: without one there is nothing to share.  */
bool gpu_locks_are_used(void);

/* Share a GPU's lock, waiting `ns` at most: 0, to be given back by gpu_unshare; -ENOENT: not needed, nothing to
 * give back; -EBUSY: another process's for longer than that, or a process's that is stopped, for as long as it is
 * so, or that was waited for in vain before. A GPU is named by its UUID.  */
int gpu_share(const uint8_t gpu[16], uint64_t ns);
void gpu_unshare(const uint8_t gpu[16]);

/* Whether this thread's last allocation was not tried, since another process has the lock and may need the memory.  */
extern __thread bool gpu_lock_in_the_way __attribute__((tls_model("initial-exec")));

/* Close the files, of which this process holds none: it becomes an image, and the next machine has others.  */
void gpu_locks_close(void);
void gpu_locks_close_in_child(void);
