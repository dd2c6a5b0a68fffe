/* The GPUs this process may see, after CUDA_VISIBLE_DEVICES.  */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "driver/sim_cuda.h"

#define SIM_DRIVER_VERSION 13000

/* Read CUDA_VISIBLE_DEVICES; CUDA_ERROR_NO_DEVICE when nothing is left.  */
CUresult device_discover(void);
bool device_valid(CUdevice device);
/* Number of the GPU in the machine.  */
unsigned device_gpu(CUdevice device);
/* Every device becomes another GPU: `destination` by the number of the GPU it was.  */
void devices_move(const uint8_t *destination);
