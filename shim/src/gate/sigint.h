/* Interrupting a wait when no controller can tell of it. With a controller an interrupt is its command (CANCEL), sent
 * beside the signal; without one, the signal itself has to do.  */
#pragma once

/* While a thread watches, a SIGINT that the program handles cancels what waits, as CANCEL does, and is handled by the
 * program as ever. One that would end the process, or is ignored, is left alone. As often as interrupts_leave.
 * Handlers that the program puts over ours may keep it and call it, then and later.  */
void interrupts_watch(void);
void interrupts_leave(void);

/* In between, now and then: the program may have set another handler.  */
void interrupts_look(void);

/* What wakes threads that wait elsewhere; async-signal-safe. At the start.  */
void interrupts_wake_also(void (*wake)(void));

void interrupts_begin_again(void);
