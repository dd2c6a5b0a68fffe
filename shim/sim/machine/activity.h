/* How busy the simulated GPUs are: written by the executors of each process, read by NVML.  */
#pragma once

#include "machine/machine.h"

/* Something begins or ends to run on a GPU of this process.  */
void activity_begin(unsigned gpu, enum sim_activity kind);
void activity_end(unsigned gpu, enum sim_activity kind);
/* Share of the last second in which it ran in one process, in percent.  */
unsigned activity_percent(const struct sim_process *process, unsigned gpu, enum sim_activity kind);
/* Wait until the link of a GPU has carried `bytes`, as fast as AFFINODE_SIM_COPY_RATE lets it; no limit, no wait.  */
void activity_throttle(unsigned gpu, enum sim_direction direction, uint64_t bytes);
