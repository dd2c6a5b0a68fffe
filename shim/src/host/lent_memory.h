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

/* Take a lot of `bytes` that is lent, mapped already or now; the descriptor is closed. What cannot be mapped has ended at
 * once. By the link thread.  */
void lots_add(int descriptor, uint64_t bytes, uint32_t number);

/* Have the lot of that descriptor unmapped when it is not lent to us any more; the descriptor is closed. By the link thread.  */
void lots_forget(int descriptor);

/* The number of a lot that has ended since, to be told; false: none.  */
bool lots_next_ended(uint32_t *number);

/* The controller is gone. The next does not know these numbers, nor what stays mapped: that has to go.  */
void lots_forget_numbers(void);

/* End the lots in which nothing is, and unmap all that can be: false, if any is left. Their ends are to be told.  */
bool lots_let_go(void);

/* Slabs that could be taken now.  */
size_t lots_available(void);

/* A free slab of a lot, the one that was made there before if there is one; NULL: none.  */
struct slab *lots_take(void);

/* Give a slab back that stays with its lot, and its registration with it; false: it may not, and must end.  */
bool lots_keep(struct slab *slab);

/* Whether a slab that stayed has to end, since its lot is to be unmapped.  */
bool lots_has_to_go(const struct slab *slab);

/* Whether no slab of this one's lot has contents. With the slabs' lock.  */
bool lots_is_unused(const struct slab *slab);

/* Give a slab back that is ending.  */
void lots_give(struct slab *slab);

/* End the lots in which nothing is; and unmap those that have ended and may not stay.  */
void lots_end_empty(void);
void lots_unmap_ended(void);

/* Bytes of the lots that are lent to us.  */
uint64_t lots_bytes(void);
