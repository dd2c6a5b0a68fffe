/* The environment variables the shim reads; jupyter_affinode/environment.py describes them all.  */
#ifndef AFFINODE_ENVIRONMENT_H
#define AFFINODE_ENVIRONMENT_H

#define AFFINODE_ENV_DEPTH "AFFINODE_DEPTH"
#define AFFINODE_ENV_DISABLE "AFFINODE_DISABLE"
#define AFFINODE_ENV_KERNEL_ID "AFFINODE_KERNEL_ID"
#define AFFINODE_ENV_LOG "AFFINODE_LOG"
#define AFFINODE_ENV_SOCKET "AFFINODE_SOCKET"

#endif
