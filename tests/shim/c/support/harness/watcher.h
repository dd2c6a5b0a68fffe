/* What ends a test that hangs, and says where every thread of it is.  */
#pragma once

#include <sys/types.h>

/* From now on, the process has `deadline_s` seconds; then it says where it is and ends with status 1. Its own processes
 * (watcher_add) are asked to do the same first. Call it while the process has one thread.  */
void watcher_start(unsigned deadline_s);

/* A process that this one started, with a watcher of its own; and that has ended.  */
void watcher_add(pid_t child);
void watcher_remove(pid_t child);
/* None of them outlives a test that failed.  */
void watcher_kill_children(void);
/* Ask such a process for its report now, and end it.  */
void watcher_ask(pid_t child);

/* Where every thread is, on stderr.  */
void watcher_report(void);
