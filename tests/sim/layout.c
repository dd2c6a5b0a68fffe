/* Prints the sizes and offsets of every struct of the driver API that the simulator shares with programs. Compiled once
 * with the simulator's header and once with NVIDIA's (-DREAL): the two must say the same.  */
#include <stddef.h>
#include <stdio.h>
#ifdef REAL
#include <cuda.h>
#else
#include "driver/sim_cuda.h"
#endif

#define SIZE(type) printf(#type " %zu\n", sizeof(type));
#define AT(type, member) printf(#type "." #member " %zu\n", offsetof(type, member));

int main(void)
{
	SIZE(CUmemAllocationProp) AT(CUmemAllocationProp, location) AT(CUmemAllocationProp, allocFlags)
	SIZE(CUmemAccessDesc) AT(CUmemAccessDesc, flags)
	SIZE(CUmemPoolProps) AT(CUmemPoolProps, location) AT(CUmemPoolProps, maxSize)
	SIZE(CUDA_ARRAY_DESCRIPTOR) AT(CUDA_ARRAY_DESCRIPTOR, Format)
	SIZE(CUDA_ARRAY3D_DESCRIPTOR) AT(CUDA_ARRAY3D_DESCRIPTOR, Flags)
	SIZE(CUipcMemHandle)
	SIZE(CUcheckpointLockArgs) AT(CUcheckpointLockArgs, timeoutMs)
	SIZE(CUcheckpointGpuPair)
	SIZE(CUcheckpointRestoreArgs) AT(CUcheckpointRestoreArgs, gpuPairsCount)
	return 0;
}
