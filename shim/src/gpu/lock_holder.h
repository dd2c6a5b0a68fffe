/* The process that holds an flock(2) lock, as /proc shows it.  */
#ifndef AFFINODE_LOCK_HOLDER_H
#define AFFINODE_LOCK_HOLDER_H

#include <stdbool.h>
#include <sys/types.h>

struct holder {
	pid_t pid;    /* 0: not to be seen, as from another pid name space */
	bool stopped; /* by a signal or a debugger; or gone, and survived by a copy of its descriptor */
};

/* Of an exclusive lock on the file of that descriptor.  */
struct holder holder_of(int fd);

#endif
