/* What kind of chip: an H200's answers, but for what the simulator cannot do. CU_DEVICE_ATTRIBUTE_* by number.  */
#include "driver/api.h"
#include "driver/device.h"
#include "machine/settings.h"

static const int attributes[] = {
	[1] = 1024,	 /* max threads per block */
	[2] = 1024,	 /* max block dimensions */
	[3] = 1024,
	[4] = 64,
	[5] = 2147483647, /* max grid dimensions */
	[6] = 65535,
	[7] = 65535,
	[8] = 49152,	  /* shared memory per block */
	[9] = 65536,	  /* constant memory */
	[10] = 32,	  /* warp size */
	[11] = 2147483647, /* max pitch */
	[12] = 65536,	  /* registers per block */
	[13] = 1980000,	  /* clock, kHz */
	[14] = 512,	  /* texture alignment */
	[15] = 1,	  /* overlap */
	[16] = 132,	  /* multiprocessors */
	[17] = 0,	  /* kernel time-out */
	[19] = 1,	  /* maps host memory */
	[20] = 0,	  /* compute mode: default */
	[21] = 131072,	  /* textures */
	[22] = 131072,
	[23] = 65536,
	[24] = 16384,
	[25] = 16384,
	[26] = 16384,
	[27] = 32768,
	[28] = 32768,
	[29] = 2048,
	[30] = 512, /* surface alignment */
	[31] = 1,   /* concurrent kernels */
	[32] = 0,   /* ECC */
	[34] = 0,   /* PCI device; bus and domain below */
	[35] = 0,   /* TCC */
	[36] = 3201000, /* memory clock, kHz */
	[37] = 6144,	/* bus width */
	[38] = 62914560, /* L2 */
	[39] = 2048,	 /* threads per multiprocessor */
	[40] = 3,	 /* copy engines */
	[41] = 1,	 /* unified addressing */
	[42] = 32768,	 /* textures */
	[43] = 2048,
	[45] = 32768,
	[46] = 32768,
	[47] = 8192,
	[48] = 8192,
	[49] = 32768,
	[50] = 0, /* PCI domain */
	[51] = 32,
	[52] = 32768,
	[53] = 32768,
	[54] = 2046,
	[55] = 32768, /* surfaces */
	[56] = 131072,
	[57] = 65536,
	[58] = 16384,
	[59] = 16384,
	[60] = 16384,
	[61] = 32768,
	[62] = 2048,
	[63] = 32768,
	[64] = 32768,
	[65] = 2048,
	[66] = 32768,
	[67] = 32768,
	[68] = 2046,
	[69] = 268435456,
	[70] = 131072,
	[71] = 65000,
	[72] = 2097120,
	[73] = 32768,
	[74] = 32768,
	[75] = 9, /* compute capability */
	[76] = 0,
	[77] = 32768,
	[78] = 1,      /* stream priorities */
	[79] = 1,      /* L1 caches */
	[80] = 1,
	[81] = 233472, /* shared memory per multiprocessor */
	[82] = 65536,  /* registers per multiprocessor */
	[83] = 1,      /* managed memory */
	[87] = 2,      /* single to double ratio */
	[88] = 0,      /* pageable access */
	[89] = 1,      /* concurrent managed access */
	[90] = 1,      /* preemption */
	[91] = 1,      /* registered memory by host pointer */
	[95] = 1,      /* cooperative launch */
	[97] = 232448, /* shared memory per block, opt-in */
	[99] = 1,      /* host register */
	[102] = 1,     /* virtual memory management */
	[103] = 1,     /* POSIX file descriptor handles */
	[106] = 32,    /* blocks per multiprocessor */
	[111] = 1024,  /* reserved shared memory per block */
	[113] = 1,     /* read-only host register */
	[115] = 1,     /* memory pools */
	[129] = 1,     /* unified function pointers */
	[132] = 1,     /* multicast */
	[134] = -1,    /* host NUMA node: none */
	[147] = 0,
};

#define ATTRIBUTE_INTEGRATED 18
#define ATTRIBUTE_PCI_BUS_ID 33

SIM_API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	ENTER("cuDeviceGetAttribute");
	if (!value || attribute < 1)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if ((unsigned)attribute >= sizeof(attributes) / sizeof(*attributes))
		return CUDA_ERROR_INVALID_VALUE; /* a newer header's */
	if (attribute == ATTRIBUTE_INTEGRATED)
		*value = settings()->is_integrated;
	else
		*value = attribute == ATTRIBUTE_PCI_BUS_ID ? (int)device_gpu(device) + 1 : attributes[attribute];
	return CUDA_SUCCESS;
}
