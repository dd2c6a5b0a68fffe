/* What spill_file.c and spill_image.c have in common.  */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/per_process.h"
#include "host/packs/pack.h"

#define PACKS 4096 /* a TiB */

/* The process's packs. A place is a pack's number and where it is in that, from 1.  */
extern struct places {
	/* Guards what packs say of their places, and which packs there are. A pack that anything is read from or written to has a user.  */
	pthread_mutex_t lock;
	struct pack *packs[PACKS];
	char image[PACK_PATH_SIZE]; /* the folder that new packs go to; "": they are parts of the file without a name */
	char memory[PACK_PATH_SIZE]; /* the process's folder in host memory */
	bool to_memory;             /* new packs go there instead */
	_Atomic bool has_unused;    /* a pack with a name has */
} places;

static inline uint32_t place_of(unsigned number, unsigned at)
{
	return (uint32_t)(number * PACK_PLACES + at + 1);
}

/* Open the folder that the administrator or the user chose for files, and check that it is theirs, and on a disk or `in_memory`. Return its
 * descriptor, or a negative errno and `why` in words.  */
int chosen_folder_open(const char *folder, bool in_memory, char *why, size_t size);

/* Write a pack's name in the folder that new packs go to, to `path`; false: it is too long.  */
bool pack_name(unsigned number, char *path);

/* Make a pack's file, or link it `from` another name. A file of that name is an earlier process's with this number.  */
int pack_make_or_link(struct pack *pack, const char *from, const char *path);

/* Add a pack, whose file has the name `from` if that is given; return its number, or PACKS for want of memory or of the disk. With
 * places.lock held, as the next two.  */
unsigned places_add_pack(const char *from);
void places_remove_pack(unsigned number);

/* Count one more user of a place.  */
void place_use(struct pack *pack, unsigned at);

/* Read within one pack. What has lost its descriptor or its name is there all the same.  */
int place_read(uint32_t place, void *to, size_t bytes);

/* Take a pack off the file without a name, with places.lock held; and close that, when none is left.  */
void unnamed_left(unsigned number);
void unnamed_forget(void);

/* Look at the process's packs again, which are among those that were found.  */
void places_look_again(void);

/* Return a place that has these contents already, with one user more, or 0. Called by any thread.  */
uint32_t image_find_equal(const struct hint *hint, const void *contents);
