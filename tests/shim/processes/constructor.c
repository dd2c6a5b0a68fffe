/* A library whose constructor computes on the GPU, as some do when they are imported.  */
#include <dlfcn.h>
#include <stddef.h>

int constructed;

static void *find(const char *name)
{
	return dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
}

__attribute__((constructor)) static void construct(void)
{
	int (*allocate)(unsigned long long *, size_t), (*fill)(unsigned long long, unsigned int, size_t);
	int (*copy)(void *, unsigned long long, size_t), (*release)(unsigned long long);
	unsigned long long block;
	unsigned int word = 0;

	*(void **)&allocate = find("cuMemAlloc_v2");
	*(void **)&fill = find("cuMemsetD32_v2");
	*(void **)&copy = find("cuMemcpyDtoH_v2");
	*(void **)&release = find("cuMemFree_v2");
	if (allocate(&block, 4 << 20) == 0 && fill(block, 99, 1 << 20) == 0 && copy(&word, block, 4) == 0 &&
	    release(block) == 0 && word == 99)
		constructed = 1;
}
