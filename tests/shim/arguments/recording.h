/* What the driver made for the argument test and the program that calls it know of each other.  */
#pragma once

#include <stdint.h>

#define RECORDING_BYTES 512

/* What an entry point got at its last call: its arguments one after another, each as wide as its type.  */
struct recording {
	unsigned int calls;
	unsigned int size;
	unsigned char bytes[RECORDING_BYTES];
};

/* Exported by the driver, under names that no CUDA library has, so that nothing stands between.  */
struct recording *recording_of(unsigned int index);
void *recording_address(unsigned int index);
void recording_let_init_succeed(int succeed);

/* What the entry point of that index returns: no known error code.  */
#define RECORDING_ANSWER(index) (0x5000u + (index))

/* By-value structs: what is in them does not matter, only that it is not of floating type.  */
struct bytes_8 {
	uint32_t words[2];
};
struct bytes_64 {
	uint64_t words[8];
};
