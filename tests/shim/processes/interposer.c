/* A library that stands between a program and the driver, as tools that count calls or limit memory do.  */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

int cuMemsetD32_v2(unsigned long long address, unsigned int value, size_t words);
int cuMemsetD32_v2(unsigned long long address, unsigned int value, size_t words)
{
	int (*next)(unsigned long long, unsigned int, size_t);

	*(void **)&next = dlsym(RTLD_NEXT, "cuMemsetD32_v2");
	return next ? next(address, value, words) : 999;
}
