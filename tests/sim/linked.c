/* A program that is linked with the driver directly: fills memory with a kernel and looks at it.  */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
extern CUresult cuInit(unsigned), cuDeviceGetName(char *, int, int), cuDevicePrimaryCtxRetain(void **, int);
extern CUresult cuCtxSetCurrent(void *), cuMemAlloc_v2(CUdeviceptr *, size_t), cuMemFree_v2(CUdeviceptr);
extern CUresult cuModuleLoadData(void **, const void *), cuModuleGetFunction(void **, void *, const char *);
extern CUresult cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
			       void **, void **);
extern CUresult cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);

#define COUNT (1u << 20)

static void check(CUresult result, const char *what)
{
	if (result) {
		fprintf(stderr, "%s: error %d\n", what, result);
		exit(1);
	}
}

int main(void)
{
	static const char text[] = ".version 7.0\n.target sm_70\n.visible .entry affinode_fill_u32() { ret; }\n";
	void *context, *module, *function;
	uint64_t count = COUNT;
	uint32_t value = 12345, *words = malloc(COUNT * sizeof(*words));
	CUdeviceptr memory;
	void *parameters[] = {&memory, &count, &value};
	char name[64];

	check(cuInit(0), "cuInit");
	check(cuDeviceGetName(name, sizeof(name), 0), "cuDeviceGetName");
	check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
	check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
	check(cuMemAlloc_v2(&memory, COUNT * sizeof(*words)), "cuMemAlloc");
	check(cuModuleLoadData(&module, text), "cuModuleLoadData");
	check(cuModuleGetFunction(&function, module, "affinode_fill_u32"), "cuModuleGetFunction");
	check(cuLaunchKernel(function, 4, 1, 1, 128, 1, 1, 0, NULL, parameters, NULL), "cuLaunchKernel");
	check(cuMemcpyDtoH_v2(words, memory, COUNT * sizeof(*words)), "cuMemcpyDtoH");
	for (unsigned i = 0; i < COUNT; i++)
		check(words[i] != value, "contents");
	check(cuMemFree_v2(memory), "cuMemFree");
	printf("%s: %u words as expected\n", name, COUNT);
	return 0;
}
