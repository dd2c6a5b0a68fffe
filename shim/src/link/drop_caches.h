/* Dropping what a framework only caches, between the controller that wishes it and the language in this process that
 * can do it (kernel/magics.py): neither is waited for.  */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "protocol.h"

/* The controller's wish (DROP_CACHES). False: it is not served here.  */
bool caches_ask(const struct affinode_command *command);

/* The answer to it, once; false: there is none yet.  */
bool caches_take_answer(uint32_t *epoch, int *status);

/* The controller is gone, and its wish with it.  */
void caches_forget(void);

/* Whether the calls of this moment are those that drop caches, which are not taken for use of the GPU.  */
bool caches_are_dropping(void);

/* By ctypes. A descriptor that becomes readable when there is a wish; negative errno. It stays ours.  */
int affinode_caches_fd(void);
/* Whether to drop caches now; then affinode_caches_end with 0, or an affinode_status, must follow.  */
int affinode_caches_begin(void);
void affinode_caches_end(int status);
