/* A streaming resume's way in: room is taken as it comes, and window after window is filled and looked at. One that hands over
 * gives the host memory of each window back as soon as that is right, so that the process that leaves can have it.  */
#ifndef AFFINODE_STREAMING_IN_H
#define AFFINODE_STREAMING_IN_H

#include "mover/copying/copying_in.h"
#include "mover/internal.h"

/* At the closed gate. CUDA_SUCCESS and nothing wrong: all is there. Else *arrived blocks of the survey have all of their contents on
 * the GPU, and the others the parts that they say, if it hands over.  */
CUresult stream_in(struct moved *moved, struct survey *survey, struct wrong *wrong, size_t *arrived);

#endif
