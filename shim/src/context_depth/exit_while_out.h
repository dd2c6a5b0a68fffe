/* The end of a process whose CUDA context is off the GPU.  */
#ifndef AFFINODE_LEAVING_H
#define AFFINODE_LEAVING_H

/* In an exit handler: bring the context back if there is room, so that the driver's own destructors find it. Otherwise see
 * to it that the process ends with `status` all the same, once its exit makes no progress any more.  */
void leaving_begin(int status);

#endif
