/* State that belongs to one process: in the child of a fork all of it is zero again, and its locks are free.
 *
 * CUDA does not work in such a child, and the parent's threads, memory and connections are not its own. One attribute marks
 * the variables; process/lifecycle.c clears them together. Their initial value is zero, as that of glibc's locks and condition
 * variables is. What has another one, or a descriptor to close, has a function beside that.  */
#pragma once

#define OF_PROCESS __attribute__((section("affinode_process")))
