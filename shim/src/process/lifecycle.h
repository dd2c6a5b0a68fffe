/* The shim's life: it starts with the process's first cuInit and ends at exit; in the child of a fork it is inert.  */
#pragma once

/* Called when the first entry point is looked up: forks are seen from now on.  */
void shim_prepare(void);

/* Called by the cuInit hook, after the real call.  */
void shim_start(void);
