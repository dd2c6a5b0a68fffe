/* What a user's other images have: their packs' hints, read at the start of a hibernation. The same of packs in memory, beside which processes
 * have files of offers: the hints of what they have for themselves alone, and would share.
 *
 * Images of one user are side by side in a folder that no other user can enter. Called by the mover alone; what is there may be read by any
 * thread meanwhile.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "host/packs/pack.h"

#define OFFERS "offers"
#define OFFERS_MAX (1u << 20) /* 2 TiB of contents */
#define NOT_TAKEN (-1)    /* the process has no name for the file */
#define CANNOT_TAKE (-2)

struct shared_pack {
	char path[PACK_PATH_SIZE];
	dev_t device;
	ino_t inode;
	int number; /* of the process's pack with that file, or one of the above; guarded by its user */
};

struct shared_chunk {
	struct hint hint;
	uint32_t pack; /* index of a shared_pack */
	uint32_t at;   /* which of its places */
};

/* Look at all images beside the image `folder`, and at that one.  */
void shared_packs_find(const char *folder);
void shared_packs_forget(void);

/* Return the chunks with that hint, and how many.  */
const struct shared_chunk *shared_chunks_like(const struct hint *hint, size_t *count);

/* Return whether another process offers contents with that hint.  */
bool shared_chunk_is_offered(const struct hint *hint);

struct shared_pack *shared_pack(uint32_t index);

/* Return the pack that is that file, or NULL.  */
struct shared_pack *shared_pack_of(dev_t device, ino_t inode);
