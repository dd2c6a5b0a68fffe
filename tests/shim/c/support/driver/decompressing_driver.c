/* Stands between the shim and the driver: answers the shim's cuGetProcAddress, so that the device is said to have a decompression
 * engine.  */
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#define DECOMPRESS_ALGORITHM_MASK 136

static int (*get_attribute)(int *, int, int);
static int algorithms;

static int answer_attribute(int *value, int attribute, int device)
{
	int result = get_attribute(value, attribute, device);

	if (result == 0 && attribute == DECOMPRESS_ALGORITHM_MASK)
		*value = algorithms;
	return result;
}

int cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status);
void decompresses(int with);

int cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status)
{
	int (*real)(const char *, void **, int, uint64_t, int *);
	void *(*find)(void *, const char *); /* libc's, not the shim's, which would give its own functions back */
	int result;

	*(void **)&find = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
	if (!find)
		*(void **)&find = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
	*(void **)&real = find(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress_v2");
	result = real(symbol, pfn, version, flags, status);
	if (result == 0 && strcmp(symbol, "cuDeviceGetAttribute") == 0) {
		*(void **)&get_attribute = *pfn;
		*pfn = (void *)answer_attribute;
	}
	return result;
}

void decompresses(int with)
{
	algorithms = with;
}
