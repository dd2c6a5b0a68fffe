/* A streaming park's way out: window after window of the process's memory is copied, looked at once more, and released, so
 * that another process can have the room while the next window is on its way.  */
#ifndef AFFINODE_STREAMING_OUT_H
#define AFFINODE_STREAMING_OUT_H

#include "mover/internal.h"
#include "mover/move_plan.h"

/* At the closed gate, all digested, with host memory for what is to be copied, or for some of it if it is handed over. True: some memory is released, and the process
 * is parked; the outcome says so if it is not all of it. False: none is, and the outcome says why.  */
bool stream_out(struct moved *moved, struct survey *survey);

#endif
