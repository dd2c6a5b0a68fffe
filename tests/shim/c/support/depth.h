/* For the tests of context depth: parking that deep, and what NVML says of the GPU meanwhile.  */
#pragma once

#include "harness.h"

/* Where the shim was built without context depth the program ends here, and says so.  */
void depth_is_needed(void);

/* Ask for context depth, which is needed then; after test_begin, before cuda_start.  */
void depth_ask(void);

/* A UUID as NVML writes it, until the next is asked for; that of the process's GPU, as the page says.  */
const char *uuid_text(const uint8_t *uuid);
const char *gpu_uuid(void);

/* What NVML says of a GPU with that UUID, or of "all", a line each, from a process of its own as the shim asks it: the driver may hold
 * ours. Not by the shim's code, which is what is tested. To be closed by pclose.  */
FILE *ask_nvml(const char *gpu);

/* What is used of the GPU, by anyone, and by how many processes.  */
uint64_t gpu_used_bytes(void);
unsigned gpu_processes(void);

/* Park at context depth and wait: the reply, whose text says why if it went no deeper than memory.  */
struct affinode_reply park_deep(void);

/* Park at memory depth although deeper is asked for, for a reason with these words.  */
void park_no_deeper(const char *because);

/* Park that deep, tried again while the process is too young for it.  */
void park_deep_surely(void);

/* The number of the call that restores the context in a resume that `command` begins, as fault boards count.  */
unsigned restoring_call(uint32_t (*command)(void));

/* Take or leave the lock of the GPU with that UUID as another process would; whether another has it. NULL: of the only one there is.  */
int gpu_lock_take(const char *gpu);
void gpu_lock_leave(int fd);
bool gpu_lock_is_taken(const char *gpu);
/* Another file of that name.  */
void gpu_lock_replace(void);
