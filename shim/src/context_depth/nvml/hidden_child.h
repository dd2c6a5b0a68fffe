/* Run a program and read what it prints, without the application noticing: no SIGCHLD, nothing for its wait(), no descriptor
 * in its table at any moment, none of its fork handlers, no copy of its page tables.
 *
 * A process that called execve is an ordinary child, whatever signal it was to end with (execve(2)). So a process in between
 * starts it, listens and buries it. That one never calls execve: cloned with the exit signal 0, only waits that name it see
 * it. It has the memory in common with us, and the calling thread stands still until it is gone, as after vfork.  */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct command {
	const char *path;
	char *const *arguments;
	char *const *environment;
};

struct printed {
	char *text; /* the caller's; ends with a NUL */
	size_t size, length;
	int status; /* the exit status */
};

/* Take the stacks; 0 or a negative errno. Once, before the first run.  */
int spawn_start(void);

/* Run it for `ns` at most, then kill it. 0: it ended by itself, and `printed` is what it printed. Else a negative errno:
 * -ETIMEDOUT: killed; -EMSGSIZE: it printed too much; -ECHILD: a signal ended it; what clone, pipe or execve said.
 * Threads wait for each other's.  */
int spawn_run(const struct command *command, uint64_t ns, struct printed *printed);
