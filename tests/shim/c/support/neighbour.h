/* A process, not ours, that takes all that is free of the GPU but `spare` bytes; it ends when told. And what the shim writes of
 * resumes for which there is no room then.  */
#pragma once

#include "harness.h"

struct neighbour {
	pid_t pid;
	int talk;
};
struct neighbour neighbour_start(uint64_t spare);
void neighbour_end(struct neighbour neighbour);
/* Be it and end, where that is this process's role; after test_begin.  */
void neighbour_main(void);

/* Have the shim write a log, in a file that is removed at the end; before the driver is loaded.  */
void log_begin(void);
/* From that log: an attempt is too short for its state to be seen for certain.  */
unsigned resumes_without_room(void);
