/* A pack: places for chunks, side by side. A process's chunks on disk are in packs.
 *
 * A pack of an image is a file with a name in the image's folder. Images of one user share it by hard links: the count of links is the
 * file system's, so no kill can leave it wrong. From the first time that it is shared on nothing in it changes any more, for all
 * processes: one that lost its name has it mapped, and may get another. The file ends with its last name and mapping.
 *
 * Behind the chunks is a hint for each: two chunks with different hints are different. That those with equal hints are equal must be seen.
 *
 * A pack in host memory is the same in a folder of the process's own on a tmpfs (memory_packs.h).
 *
 * Other packs are parts of the process's file without a name (spill_file.h), and no other process has them.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "host/chunk.h"
#include "host/packs/disk_file.h"

#define PACK_PLACES 128
#define PACK_BYTES (PACK_PLACES * CHUNK_BYTES)
#define PACK_HINTS_BYTES 4096
#define PACK_FILE_BYTES (PACK_BYTES + PACK_HINTS_BYTES)
#define PACK_PATH_SIZE 256

struct hint {
	uint64_t words[2]; /* zeros: there is nothing that may be shared */
};

struct pack {
	char path[PACK_PATH_SIZE]; /* of the process's name for it; "": it is a part of the file without a name */
	dev_t device; /* which file it is */
	ino_t inode;
	unsigned char *mapping; /* for reading where the file has lost its name, or its descriptor; it also keeps the file */
	bool in_memory;         /* it takes host memory, and is gone with its last name and mapping */
	unsigned names;         /* in memory: how many processes have a name for it, when that was looked at last */
	bool own;               /* this process made it: only it writes to free places, and frees them */
	bool shared;            /* another process has had it, for all that is known: nothing is written to it, or freed */
	bool changed;           /* the hints in the file are not these */
	bool has_unused;        /* a place is written, and unused */
	unsigned used;          /* places with users */
	uint16_t users[PACK_PLACES]; /* chunks of this process whose contents are there */
	bool written[PACK_PLACES];   /* what is there may be another process's, too */
	struct hint hints[PACK_PLACES];
};

/* Return the hint of a chunk's contents.  */
struct hint pack_hint(const void *chunk);

/* Return whether a file of that status may be a pack of this user's.  */
bool pack_is_one(const struct stat *status);

/* Make a new file of the process's own. Return 0 or a negative errno; then there is none.  */
int pack_make(struct pack *pack, const char *path);

/* Have a file of another image, or of this one, under one more name: it is shared from then on. Return 0 or a negative errno; then the name is not there.  */
int pack_link(struct pack *pack, const char *from, const char *path);

/* Open a pack's file, if the name is still that file's. Return 0 or a negative errno; `file` is to be closed.  */
int pack_open(const struct pack *pack, struct disk_file *file, int flags);

/* Map a pack's part of a file for reading. Return NULL for want of memory.  */
void *pack_map(int descriptor, off_t at);

/* Write the hints to the file: from then on others find what is in it.  */
void pack_publish(struct pack *pack);

/* Give the space of an own pack's unused places back to the disk, unless it is shared. They are free then.  */
void pack_free_unused(struct pack *pack);

/* See whether an own pack is shared by now, or what the owner of another's has written to it since.  */
void pack_look_again(struct pack *pack);

/* Take note that the process was woken: its names may be those of copies.  */
void pack_found_again(struct pack *pack);

/* Unmap a pack, and remove the process's name.  */
void pack_end(struct pack *pack);
