/* Lots: host memory for copies that the controller touched beforehand, charged to the node, and lent as descriptors. The
 * controller that lends one may take it back by truncating it when this process is gone.
 *
 * A lot that was given back stays mapped, and its slabs registered, where the controller allows that: it may be lent again
 * after other processes of the same user had it. Until then it is not touched.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lot;
struct slab;

/* Take a lot of `bytes` that the controller lends, map it unless it is mapped still, and close the descriptor. A lot that cannot
 * be mapped has ended at once. Called by the link thread.  */
void lots_add(int descriptor, uint64_t bytes, uint32_t number);

/* Have the lot of that descriptor unmapped once it is given back, and close the descriptor. Called by the link thread.  */
void lots_forget(int descriptor);

/* Take the number of a lot that has ended, which the controller is to be told. Return false if there is none.  */
bool lots_next_ended(uint32_t *number);

/* Forget what the controller that is gone lent: the next one knows neither the numbers nor what stays mapped, so that is
 * unmapped as soon as it can be.  */
void lots_forget_numbers(void);

/* End the lots in which nothing is, and unmap all that can be. Return false if any is left. The controller is told of the ends by
 * lots_next_ended.  */
bool lots_let_go(void);

/* Return how many slabs lots_take can return now.  */
size_t lots_available(void);

/* Take a free slab of a lot, if there is one the slab that was made there before, since that is registered still. Return NULL if
 * none is free.  */
struct slab *lots_take(void);

/* Give a slab back that stays registered with its lot, for the next time that the lot is lent. Return false if the lot is to be
 * unmapped: then the slab must end, and lots_give follows.  */
bool lots_keep(struct slab *slab);

/* Return whether a slab that stayed has to end, since its lot is to be unmapped.  */
bool lots_has_to_go(const struct slab *slab);

/* Return whether no slab of this slab's lot has contents. Called with the slabs' lock held.  */
bool lots_is_unused(const struct slab *slab);

/* Give a slab back that has ended: its memory is the lot's again.  */
void lots_give(struct slab *slab);

/* End the lots in which nothing is.  */
void lots_end_empty(void);

/* Unmap the lots that have ended and may not stay.  */
void lots_unmap_ended(void);

/* Return the bytes of all lots that are lent to this process.  */
uint64_t lots_bytes(void);
