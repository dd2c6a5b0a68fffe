/* A small program that uses CUDA, not Python: linked to libcuda or, with -DHANDLE=…, looking every function up there; with
 * -DASK=… it asks that cuGetProcAddress, as the CUDA runtime does. Fills a block, then checks it each time a byte comes, and ends with the input.  */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORDS (1u << 20)

#ifdef DLSYM_VERSION /* as a program that was built with an older glibc */
__asm__(".symver dlsym, dlsym@" DLSYM_VERSION);
#endif

#ifdef HANDLE
#define FUNCTION(type, name, parameters) static type(*name) parameters;
#else
#define FUNCTION(type, name, parameters) type name parameters;
#endif
FUNCTION(int, cuInit, (unsigned int))
FUNCTION(int, cuDevicePrimaryCtxRetain, (void **, int))
FUNCTION(int, cuCtxSetCurrent, (void *))
FUNCTION(int, cuMemAlloc_v2, (unsigned long long *, size_t))
FUNCTION(int, cuMemsetD32_v2, (unsigned long long, unsigned int, size_t))
FUNCTION(int, cuMemcpyDtoH_v2, (void *, unsigned long long, size_t))
FUNCTION(int, cuCtxSynchronize, (void))

static void must(int result, const char *what)
{
	if (result != 0) {
		fprintf(stderr, "%s: %d\n", what, result);
		exit(1);
	}
}

#ifdef ASK
int cuGetProcAddress_v2(const char *, void **, int, unsigned long long, void *);

static const char *unversioned(const char *name)
{
	static char base[64];

	snprintf(base, sizeof(base), "%s", name);
	if (strstr(base, "_v2"))
		*strstr(base, "_v2") = 0;
	return base;
}
#endif

int main(void)
{
	unsigned int *words = malloc(4 * WORDS);
	unsigned long long block;
	void *context;
	char byte;

#ifdef HANDLE
	void *library = HANDLE;
#ifdef ASK
	int (*ask)(const char *, void **, int, unsigned long long, void *), status;
	*(void **)&ask = (void *)ASK;
#define FIND(name) must(ask(unversioned(#name), (void **)&name, 12000, 0, &status), #name)
#else
#define FIND(name) *(void **)&name = dlsym(library, #name)
#endif
	FIND(cuInit);
	FIND(cuDevicePrimaryCtxRetain);
	FIND(cuCtxSetCurrent);
	FIND(cuMemAlloc_v2);
	FIND(cuMemsetD32_v2);
	FIND(cuMemcpyDtoH_v2);
	FIND(cuCtxSynchronize);
#endif
	must(cuInit(0), "cuInit");
	must(cuDevicePrimaryCtxRetain(&context, 0), "retain");
	must(cuCtxSetCurrent(context), "set current");
	must(cuMemAlloc_v2(&block, 4 * WORDS), "allocate");
	must(cuMemsetD32_v2(block, 0xabcd1234, WORDS), "fill");
	must(cuCtxSynchronize(), "synchronise");
	for (;;) {
		unsigned int wrong = 0;

		must(cuMemcpyDtoH_v2(words, block, 4 * WORDS), "copy");
		for (unsigned int i = 0; i < WORDS; i++)
			wrong += words[i] != 0xabcd1234;
		printf("%u wrong\n", wrong);
		fflush(stdout);
		if (read(0, &byte, 1) != 1)
			return 0;
	}
}
