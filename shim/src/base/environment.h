/* The environment variables the shim reads; jupyter_affinode/environment.py describes them all.  */
#pragma once

#define AFFINODE_ENV_DEPTH "AFFINODE_DEPTH"
#define AFFINODE_ENV_DISABLE "AFFINODE_DISABLE"
#define AFFINODE_ENV_FOLDER "AFFINODE_FOLDER"
#define AFFINODE_ENV_GRANT "AFFINODE_GRANT"
#define AFFINODE_ENV_GRANT_FILE "AFFINODE_GRANT_FILE"
#define AFFINODE_ENV_KERNEL_ID "AFFINODE_KERNEL_ID"
#define AFFINODE_ENV_LOG "AFFINODE_LOG"
#define AFFINODE_ENV_SOCKET "AFFINODE_SOCKET"

/* As it is now; NULL in a program that runs with more rights than its caller's, which must not use them as the
 * caller says.  */
const char *environment_now(const char *name);

/* Note what threads of ours, and later questions, need of the environment: getenv is not safe beside a setenv of the
 * program's. On the thread that starts the shim, before there are others; again on a thread that has changed it for the shim.  */
void environment_note(void);

/* As environment_now had it then; NULL: it was not set, or is none of those that are noted. A program's later
 * changes are not seen.  */
const char *environment_noted(const char *name);
