/* The list of slots, for the gate alone.  */
#pragma once

#include "gate/gate.h"

struct slot *slots_first(void);

/* For a thread that has none, to wait with; it never says that a call is inside.  */
struct slot *slot_shared(void);

/* The calling thread's slot, acquired if it has none.  */
struct slot *slot_own(void);

/* Out of gate_slot, so that the thread's calls come the slow way, and back.  */
void slot_put_aside(void);
void slot_take_back(void);

/* Free the slots of threads that are gone (killed without their destructors), and clear those whose wrapper's frame
 * was left by longjmp. Slow (reads /proc): only when a drain does not end.  */
void slots_recover(void);

/* Free the slots of threads that are gone inside a call; at any time, with the gate open too.  */
void slots_recover_dead(void);

void slots_begin_again(void);
