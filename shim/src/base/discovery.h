/* Where the controller's sockets are: jupyter_affinode/environment.py finds them the same way.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* The folders in which a controller may listen, the first at place 0, to be tried in this order at each connection: 0, or a
 * negative errno where there is none. -ERANGE after the last.  */
int discovery_folder(unsigned place, char *folder, size_t size);

/* A controller is being started for one of these folders, and will listen soon.  */
bool discovery_start_is_under_way(void);

/* The folder of the locks on GPUs: one for all processes of the user, whichever controller they are connected to. Locks are
 * for context depth, which the machine's controller does without.  */
int discovery_lock_folder(char *folder, size_t size);
