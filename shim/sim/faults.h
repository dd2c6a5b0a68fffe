/* Errors on demand: AFFINODE_SIM_FAULTS="name:ERROR:nth[+],…" makes the nth call of `name` in this process (counted from
 * 1; with `+` every call from the nth on) return CUDA_ERROR_<ERROR> before it does anything. Names are those that
 * cuGetProcAddress is asked, without version: "cuMemCreate:OUT_OF_MEMORY:3". ERROR may also be a number.  */
#ifndef SIM_FAULTS_H
#define SIM_FAULTS_H

#include "sim_cuda.h"

/* CUDA_SUCCESS, or the error that this call of `name` is to return.  */
CUresult faults_next(const char *name);

#endif
