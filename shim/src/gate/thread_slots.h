/* The list of all threads' slots. For the gate alone.  */
#pragma once

#include "gate/gate.h"

struct slot *slots_first(void);

/* Return the slot in which threads that have none show that they wait. It never says that a call is inside.  */
struct slot *slot_shared(void);

/* Return the calling thread's slot, acquired if it has none; NULL for want of memory.  */
struct slot *slot_own(void);

/* Take the calling thread's slot out of gate_slot, so that its calls come the slow way into the gate; and put it back.  */
void slot_put_aside(void);
void slot_take_back(void);

/* Free the slots of threads that are gone (killed without their destructors), and clear those whose wrapper's frame
 * was left by longjmp. Slow (reads /proc): only when a drain does not end.  */
void slots_recover(void);

/* Free the slots of threads that ended inside a call. It may be called at any time, with the gate open too.  */
void slots_recover_dead(void);

void slots_begin_again(void);
