/* CUDA arrays, as plain rows of memory.  */
#pragma once

#include <stdbool.h>

#include "driver/sim_cuda.h"

/* Where an array's memory begins, and its steps; false: not an array.  */
bool array_layout(CUarray array, uint64_t *base, uint64_t *pitch, uint64_t *slice);
