/* The driver's checkpoint of processes: the gate that every call passes, and the thread that serves requests.  */
#ifndef SIM_CHECKPOINT_H
#define SIM_CHECKPOINT_H

#include "sim_cuda.h"

#include <stdbool.h>

/* Whether calls must wait now; cheap.  */
bool checkpoint_closed(void);
void checkpoint_wait_open(void);
/* Start the thread that serves requests, once; at the first context.  */
CUresult checkpoint_serve(void);

#endif
