/* Shared by slabs.c (which has the list), slab_populate.c and slab_pinning.c; of the mover's thread alone, but for what
 * says otherwise.  */
#pragma once

#include "host/slabs.h"

/* Put a slab that was made, or came back with its lot, into the list. By any thread.  */
void slab_add(struct slab *slab);

/* The list's first. The mover alone changes the list while no thread makes slabs.  */
struct slab *slabs_first(void);

/* Begin to give out slots from the list's start; how many are free.  */
size_t slabs_rewind(void);

/* Where the slabs of the last order are to be registered; NULL: nowhere.  */
CUcontext slabs_registered_in(void);
/* With the driver, from that context, which is current, unless it is; it may say no. By any thread.  */
void slab_register(struct slab *slab, CUcontext context);

/* False: the driver still has it.  */
bool slab_unregister(struct slab *slab);

/* Mend what ends of contexts may have undone since the last look.  */
void slabs_look_at_registrations(void);
