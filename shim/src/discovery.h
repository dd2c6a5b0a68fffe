/* Where the controller's sockets are: see jupyter_affinode/environment.py, which finds them the same way.  */
#ifndef AFFINODE_DISCOVERY_H
#define AFFINODE_DISCOVERY_H

#include <stddef.h>

/* The folder of the sockets, anew at each call; 0 or a negative errno.  */
int discovery_folder(char *folder, size_t size);

#endif
