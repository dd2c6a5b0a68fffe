/* Leaving the gate when an exception, or a thread's cancellation, takes a wrapper's frame away.
 *
 * The compiler asks for __gcc_personality_v0 and _Unwind_Resume wherever a variable has a cleanup. We answer with our own
 * instead of libgcc's: preloading libgcc_s into every program would pin the system's copy of it for libraries that bring
 * a newer one. The unwinder (whichever the program has) calls the personality as it passes each of our frames; it does
 * there what the cleanup would have done, and lets the unwinding go on, so no landing pad is ever entered.  */
#include <stdint.h>
#include <stdlib.h>

#include "gate/gate.h"

#define HIDDEN __attribute__((visibility("hidden")))

/* As the Itanium C++ ABI for exception handling has them.  */
enum { URC_CONTINUE_UNWIND = 8 };
enum { UA_CLEANUP_PHASE = 2 };

HIDDEN int __gcc_personality_v0(int version, int actions, uint64_t exception_class, void *exception, void *context);
HIDDEN _Noreturn void _Unwind_Resume(void *exception);

int __gcc_personality_v0(int version, int actions, uint64_t exception_class, void *exception, void *context)
{
	struct slot *slot = gate_slot;

	(void)version, (void)exception_class, (void)exception, (void)context;
	/* Called once for each of our frames with a pass, innermost first; all but the last are nested ones.  */
	if ((actions & UA_CLEANUP_PHASE) && slot && atomic_load(&slot->inside)) {
		if (atomic_load(&slot->nested))
			atomic_fetch_sub(&slot->nested, 1);
		else
			atomic_store_explicit(&slot->inside, 0, memory_order_release);
	}
	return URC_CONTINUE_UNWIND;
}

/* Landing pads end in it, and none is ever entered.  */
void _Unwind_Resume(void *exception)
{
	(void)exception;
	abort();
}
