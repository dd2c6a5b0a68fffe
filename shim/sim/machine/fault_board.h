/* The board through which a test changes faults (faults.h) while programs run: a file of one page, named by
 * AFFINODE_SIM_FAULT_BOARD and mapped by all of them.  */
#pragma once

#include <stdint.h>

#define SIM_FAULT_BOARD_SIZE 4096u

/* The text counts when `generation` was raised after it was written; calls are then counted from zero again.  */
struct sim_fault_board {
	uint32_t generation;
	uint32_t calls; /* calls of any name since, by all processes of the board */
	uint32_t met;   /* faults that struck since */
	uint32_t held;  /* calls that wait now */
	int64_t registered_bytes; /* host memory that is registered, added up over all processes, also those that ended */
	char struck[512]; /* names of the calls that faults struck since, each once, a space behind each */
	char text[2048];
};
