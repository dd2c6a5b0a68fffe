#define _GNU_SOURCE
#include "host/packs/private_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/packs/disk_file.h"

#define STEP (O_PATH | O_NOFOLLOW | O_CLOEXEC)
#define STEPS_MAX 512 /* links may lead in a circle */
#define LEFT_SIZE 1024
#define NAME_MAX_SIZE 256

static int refuse(int error, char *why, size_t size, const char *folder, const char *text)
{
	snprintf(why, size, "the folder %.100s %s", folder, text);
	return error;
}

/* Refuse what a descriptor is of, by its own name: it may be a folder above the one that was chosen.  */
static int refuse_opened(int descriptor, char *why, size_t size, const char *text)
{
	char link[32], shown[101] = "above it";
	ssize_t length;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
	length = readlink(link, shown, sizeof(shown) - 1);
	if (length > 0)
		shown[length] = '\0';
	return refuse(-EPERM, why, size, shown, text);
}

/* Take the next name of a path. Return false where there is none.  */
static bool take_name(char *left, char name[NAME_MAX_SIZE])
{
	size_t begin = strspn(left, "/"), length = strcspn(left + begin, "/");

	if (!length || length >= NAME_MAX_SIZE)
		return false;
	memcpy(name, left + begin, length);
	name[length] = '\0';
	memmove(left, left + begin + length, strlen(left + begin + length) + 1);
	return true;
}

/* Refuse a folder that another user can exchange or, without the sticky bit, exchange something in.  */
static int verify(int descriptor, char *why, size_t size)
{
	struct stat status;

	if (disk_status(descriptor, &status) != 0)
		return refuse_opened(descriptor, why, size, "cannot be looked at");
	if (status.st_uid != 0 && status.st_uid != geteuid())
		return refuse_opened(descriptor, why, size, "belongs to another user");
	if (S_ISDIR(status.st_mode) && status.st_mode & (S_IWGRP | S_IWOTH) && !(status.st_mode & S_ISVTX))
		return refuse_opened(descriptor, why, size, "may be changed by others and has no sticky bit");
	return 0;
}

/* Put what a link leads to before the names that are left. Return 1 if that begins at the root folder, 0 or a negative errno.  */
static int follow(int link, char *left)
{
	char whole[LEFT_SIZE];
	ssize_t length = readlinkat(link, "", whole, sizeof(whole) - 1);
	size_t rest = strlen(left);

	if (length <= 0)
		return length ? -errno : -ENOENT;
	if ((size_t)length + 1 + rest >= sizeof(whole))
		return -ENAMETOOLONG;
	whole[length] = '/';
	memcpy(whole + length + 1, left, rest + 1);
	memcpy(left, whole, (size_t)length + 1 + rest + 1);
	return left[0] == '/';
}

/* Open one name: a folder, or a symbolic link. O_DIRECTORY has automounts come.  */
static int step(int here, const char *name)
{
	int found = openat(here, name, STEP | O_DIRECTORY);

	if (found < 0 && errno == ENOTDIR)
		found = openat(here, name, STEP);
	return found < 0 ? -errno : found;
}

static bool is_link(int descriptor)
{
	struct stat status;

	return disk_status(descriptor, &status) == 0 && S_ISLNK(status.st_mode);
}

/* Go on from `*here` by one name. Return 0 or a negative errno.  */
static int go_on(int *here, char *left, const char *name, const char *folder, char *why, size_t size)
{
	int error = verify(*here, why, size), found;

	if (error)
		return error;
	found = step(*here, name);
	if (found < 0)
		return refuse(found, why, size, folder, "cannot be opened here");
	if (is_link(found)) {
		error = left[strspn(left, "/")] ? verify(found, why, size)
						: refuse(-ELOOP, why, size, folder, "is no folder, or a symbolic link");
		if (!error)
			error = follow(found, left);
		close(found);
		if (error < 0)
			return why[0] ? error : refuse(error, why, size, folder, "cannot be opened here");
		if (error == 0)
			return 0;
		found = open("/", STEP | O_DIRECTORY);
		if (found < 0)
			return refuse(-errno, why, size, folder, "cannot be opened here");
	}
	close(*here);
	*here = found;
	return 0;
}

int private_folder_open(const char *folder, char *why, size_t size)
{
	char left[LEFT_SIZE], name[NAME_MAX_SIZE];
	int here, found, error = 0;

	why[0] = '\0';
	if (folder[0] != '/' || (size_t)snprintf(left, sizeof(left), "%s", folder) >= sizeof(left))
		return refuse(-EINVAL, why, size, folder, "has no path that can be used");
	here = open("/", STEP | O_DIRECTORY);
	if (here < 0)
		return refuse(-errno, why, size, folder, "cannot be opened here");
	for (unsigned steps = 0; !error && take_name(left, name); steps++)
		error = steps < STEPS_MAX ? go_on(&here, left, name, folder, why, size)
					  : refuse(-ELOOP, why, size, folder, "leads through too many links");
	if (!error)
		error = verify(here, why, size);
	found = error ? error : openat(here, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (!error && found < 0)
		found = refuse(-errno, why, size, folder, errno == ENOTDIR ? "is no folder, or a symbolic link" : "cannot be opened here");
	close(here);
	return found;
}
