/* Lots: host memory for copies that the controller touched beforehand, charged to the node, and handed over as
 * descriptors. The controller that lends one may take it back by truncating it when this process is gone.  */
#ifndef AFFINODE_LOTS_H
#define AFFINODE_LOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Map a lot of `bytes`; the descriptor is closed. What cannot be mapped has ended at once. By the link thread.  */
void lots_add(int descriptor, uint64_t bytes, uint32_t number);

/* The number of a lot that has ended since, to be told; false: none.  */
bool lots_next_ended(uint32_t *number);

/* Another controller: it does not know these numbers.  */
void lots_forget_numbers(void);

/* Slabs that could be taken now.  */
size_t lots_available(void);

/* Memory for a slab, or NULL; and back.  */
unsigned char *lots_take(void);
void lots_give(unsigned char *base);

/* End the lots in which nothing is.  */
void lots_end_empty(void);

/* Bytes of the lots held.  */
uint64_t lots_bytes(void);

#endif
