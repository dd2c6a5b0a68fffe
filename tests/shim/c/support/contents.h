/* What a process of these tests has on the GPU: blocks of the driver's allocations, with whole and broken chunks of 2 MiB,
 * with zeros and without, and one allocation of the application's own that is mapped twice; and what is in them.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "cuda.h"

enum {
	CONTENTS_ONE_CHUNK,
	CONTENTS_ZERO_AMIDST, /* three chunks; the one in the middle is zero */
	CONTENTS_BROKEN,      /* a chunk and a quarter */
	CONTENTS_ZERO,
	CONTENTS_MAPPED,
	CONTENTS_OTHER_GPU, /* where the machine has two: on the second */
	CONTENTS_BLOCKS,
};

/* Begin a test that has it: a driver that fails when it is told to, a controller, a GPU with all of it.  */
void contents_begin(int argc, char **argv);
/* Allocate and fill all of it, after cuda_start.  */
void contents_make(void);
/* Add one to every word of a block that is not zero; asynchronous. What it holds is then known to be so.  */
CUresult contents_change(unsigned block);
/* The same, and wait for it.  */
void contents_change_now(unsigned block);
/* Give a block other contents of its kind, and wait for it.  */
void contents_fill(unsigned block);
/* Free a block, and allocate it anew with other contents.  */
void contents_free(unsigned block);
void contents_allocate(unsigned block);
/* Read everything back and compare: the test fails where a word is wrong.  */
void contents_are_right(void);
/* Bytes of whole chunks that must be on the first GPU when all of it is resident, and on the second.  */
size_t contents_bytes(void);
size_t contents_bytes_of_other_gpu(void);
/* Bring the process to where the move begins: parked for a resume, parked in part for a park of the rest.  */
struct move;
void contents_make_ready(const struct move *move);
/* Resume a parked process in part: there is room for the first parts alone, and what they bring stays on the GPU.  */
void contents_come_in_part(unsigned parts);
/* A child with all of it on the GPU, which does nothing but wait to be moved and killed; and its role, which is in `test_role`.  */
pid_t contents_child_start(void);
void contents_child(void);
/* What a thread does that changes a block once.  */
void contents_call(void);
/* The second GPU's context; NULL: there is none.  */
CUcontext contents_other_context(void);
