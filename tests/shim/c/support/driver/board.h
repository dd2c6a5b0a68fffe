/* Faults of the simulated driver, armed while the program runs (shim/sim/machine/faults.h says what there is).  */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* After test_begin, before the driver is loaded, here or in a child.  */
void board_make(void);
/* The same as cuda_begin, with a board.  */
void board_begin(int argc, char **argv, unsigned deadline_s);
/* From now on these faults, calls counted from zero. "": none.  */
__attribute__((format(printf, 1, 2))) void board_arm(const char *format, ...);
/* No faults any more; how often one struck.  */
unsigned board_disarm(void);
unsigned board_met(void);   /* times that a fault struck since it was armed */
unsigned board_calls(void); /* of any name since then */
bool board_holds(void);     /* a call waits at a HOLD */
/* The same of that move, which may be prepared or have ended without such a call; waits until one of these is so.  */
bool board_holds_in(uint32_t epoch);
const char *board_struck(void); /* names of the calls that were struck, when it was disarmed last */
int64_t board_registered_bytes(void);

/* From a step to the next that is tried: some are left out, beginning anywhere.  */
unsigned board_first_step(void);
unsigned board_stride(void);
/* Try each of those steps, `nth`, while `made` says that there was such a call; then print the words and how far that came.  */
#define AT_EVERY_CALL(made, ...)                       \
	do {                                           \
		unsigned nth = board_first_step();     \
		while (made)                           \
			nth += board_stride();         \
		printf(__VA_ARGS__);                   \
		printf(" at calls up to %u\n", nth - 1); \
		CHECK(nth > 10);                       \
	} while (0)
/* At each step that is tried a fault, and then all calls from there on ("+"), until that says that no such call was made.  */
void board_at_every_call(bool (*fails_at)(const char *plus, unsigned nth), const char *name);
