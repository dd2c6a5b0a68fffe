/* Reading and writing a file on a local disk past the system's cache, where its file system knows that.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

struct disk_file {
	int descriptor;
	bool direct;
};

/* Read a file's status by the system call itself, since glibc's functions have no version that is old enough: by descriptor, or by name
 * without following a link. Return 0 or a negative errno.  */
int disk_status(int descriptor, struct stat *status);
int disk_status_at(const char *path, struct stat *status);

/* Move a descriptor to a number that programs do not use; return that, or the descriptor if there is none.  */
int disk_out_of_the_way(int descriptor);

/* Open a file that is there, no link. Return 0 or a negative errno.  */
int disk_open(struct disk_file *file, const char *path, int flags);

/* Read or write all of it. Return 0 or a negative errno.  */
int disk_read(struct disk_file *file, off_t at, void *to, size_t bytes);
int disk_write(struct disk_file *file, off_t at, const void *from, size_t bytes);
