/* Preloaded to prove that the argument test can fail: one entry point whose first argument arrives changed.  */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>

unsigned int cuMemsetD8_v2(uint64_t address, uint8_t value, uint64_t count);

unsigned int cuMemsetD8_v2(uint64_t address, uint8_t value, uint64_t count)
{
	unsigned int (*real)(uint64_t, uint8_t, uint64_t);

	*(void **)&real = dlsym(RTLD_NEXT, "cuMemsetD8_v2");
	return real(address ^ (1ull << 63), value, count);
}
