/* Dropping what a framework only caches, between the controller that wishes it and the language in this process that
 * can do it (kernel/magics.py): neither is waited for.  */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "protocol.h"

/* Take the controller's request (DROP_CACHES). Return false if nothing in this process can serve it.  */
bool caches_ask(const struct affinode_command *command);

/* Take the answer to it, once. Return false if there is none yet.  */
bool caches_take_answer(uint32_t *epoch, int *status);

/* Forget the request, since the controller is gone.  */
void caches_forget(void);

/* Return whether caches are being dropped now: calls meanwhile are not taken for use of the GPU.  */
bool caches_are_dropping(void);

/* Called by ctypes. Return a descriptor that is readable while there is a request, or a negative errno. The caller does not close it.  */
int affinode_caches_fd(void);
/* Return whether to drop caches now. Then affinode_caches_end must follow, with 0 or an affinode_status.  */
int affinode_caches_begin(void);
void affinode_caches_end(int status);
