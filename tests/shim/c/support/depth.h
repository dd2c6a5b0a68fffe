/* For the tests of context depth: parking that deep, and what NVML says of the GPU meanwhile.  */
#ifndef TEST_DEPTH_H
#define TEST_DEPTH_H

#include "harness.h"

/* Where the shim was built without context depth the program ends here, and says so.  */
void depth_is_needed(void);

/* Ask for context depth, which is needed then; after test_begin, before cuda_start.  */
void depth_ask(void);

/* The process's GPU, as the page says and NVML writes it.  */
const char *gpu_uuid(void);

/* What is used of the GPU, by anyone, and by how many processes.  */
uint64_t gpu_used_bytes(void);
unsigned gpu_processes(void);

/* Park at context depth and wait: the reply, whose text says why if it went no deeper than memory.  */
struct affinode_reply park_deep(void);

/* Park that deep, tried again while the process is too young for it.  */
void park_deep_surely(void);

/* The number of the call that restores the context in a resume that `command` begins, as fault boards count.  */
unsigned restoring_call(uint32_t (*command)(void));

/* Take or leave the first GPU's lock as another process would; -1: it is held by another process.  */
int gpu_lock_take(void);
void gpu_lock_leave(int fd);
/* Another file of that name.  */
void gpu_lock_replace(void);

#endif
