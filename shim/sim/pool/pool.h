/* Stream-ordered allocation: pools keep freed blocks for later, up to their threshold.  */
#pragma once

#include "memory/ranges.h"

/* cuMemFree of a pool's block, whose work is done; the tables are held for writing.  */
void pool_give_back(struct range *range);
/* After something was waited for: what the thresholds do not let the pools keep goes back to the GPU.  */
void pools_synchronised(void);
