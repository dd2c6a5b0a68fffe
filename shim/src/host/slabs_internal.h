/* Shared by slabs.c (which has the list), slab_populate.c and slab_pinning.c; of the mover's thread alone, but for what
 * says otherwise.  */
#pragma once

#include "host/slabs.h"

/* Put a slab that was made, or came back with its lot, into the list. Called by any thread.  */
void slab_add(struct slab *slab);

/* Return the first of the list. While no thread makes slabs, the mover alone changes the list.  */
struct slab *slabs_first(void);

/* Have slots given out from the start of the list again. Return how many are free.  */
size_t slabs_rewind(void);

/* Return the context in which slabs of the last order are registered; NULL: none is.  */
CUcontext slabs_registered_in(void);
/* Register a slab with the driver in that context, which is current, unless it is registered; the driver may refuse. Called by any
 * thread.  */
void slab_register(struct slab *slab, CUcontext context);

/* Have the driver forget a slab's registration. Return false if it refused: then the memory must stay.  */
bool slab_unregister(struct slab *slab);

/* Note which registrations ended with their contexts since the last call.  */
void slabs_look_at_registrations(void);
