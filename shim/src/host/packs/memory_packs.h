/* Packs in host memory: what parked processes of one user have in common is there once.
 *
 * They are files in a folder of the user's on a tmpfs, which no other user can enter. Each process has a folder of its own there, with a name for
 * each pack that it has anything in, as an image has (pack.h): so the file system counts who has a pack, and the pack is gone with its last
 * name and mapping. A process holds a lock on its folder as long as it lives; a folder without that lock is of a process that has ended,
 * and removed by the next process that looks there, or by the controller.
 *
 * Beside its packs a process has a file of offers: the hints of contents that are its own alone. Another process that has such contents puts them
 * into a pack, where the first finds them when it looks again. Contents that no other process offers stay where they are.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "host/packs/pack.h"

/* Begin to share: look at what the user's other processes have below `folder`, and keep them from doing so meanwhile. What is written from
 * now on goes to packs in memory. `number` is part of the name of the user's folder there, so that no other user can take that name first.
 * Return 0, or a negative errno and `why` in words; -EBUSY: another process does so now; -EEXIST: the name is taken.  */
int memory_packs_begin(const char *folder, uint64_t number, char *why, size_t size);

/* Return whether it may be worthwhile to share contents: another process has them, or offers them.  */
bool memory_packs_want(const struct hint *hint);

/* Offer contents with these hints, and nothing else any more. Return 0 or a negative errno.  */
int memory_packs_offer(const struct hint *hints, size_t count);

/* Let others go on.  */
void memory_packs_done(void);

/* Remove the process's folder: no process finds its packs by it any more. What it has mapped stays. Called by any thread.  */
void memory_packs_leave(void);
void memory_packs_close_in_child(void);

/* Host memory in packs: in places of this process, what of that would be free without it, what is in packs that others have, too, and the
 * process's part of what these take: one that two processes have counts half in each.  */
struct memory_packs_use {
	uint64_t bytes, sole, shared, part;
};
struct memory_packs_use memory_packs_use(void);

/* Return the bytes in places of this process, and all bytes that it ever wrote to packs in memory. Called by any thread.  */
uint64_t memory_packs_bytes(void);
uint64_t memory_packs_written(void);

/* Return whether this process alone has the pack of a place, when that was looked at last.  */
bool memory_packs_is_sole(uint32_t place);
