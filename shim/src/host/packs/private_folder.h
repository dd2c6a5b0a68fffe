/* Folders that no other user can exchange, as jupyter_affinode/private_folders.py has them: each folder on the way belongs to this user
 * or to root, and others may write to none of them, but to one with the sticky bit, as /tmp.  */
#pragma once

#include <stddef.h>

/* Open a folder, whose name is no symbolic link. Return a descriptor, or a negative errno with the reason in `why`.  */
int private_folder_open(const char *folder, char *why, size_t size);
