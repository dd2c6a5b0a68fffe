/* What allocating and freeing device memory costs, without any allocator in between. Run by allocations.py, which compiles
 * it, with the shim and without: pairs of cuMemAlloc and cuMemFree in a loop, and many blocks held. Prints one
 * "name MiB microseconds" a line, each the median of many calls.  */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MIB (1ull << 20)
#define PAIRS 400
#define HELD 200

typedef unsigned long long address;

static int (*cuInit)(unsigned int);
static int (*cuDevicePrimaryCtxRetain)(void **, int);
static int (*cuCtxSetCurrent)(void *);
static int (*cuMemAlloc_v2)(address *, size_t);
static int (*cuMemFree_v2)(address);
static int (*cuMemsetD32Async)(address, unsigned int, size_t, void *);

static void must(int result, const char *what)
{
	if (result != 0) {
		fprintf(stderr, "%s: error %d\n", what, result);
		exit(1);
	}
}
#define CUDA(call) must(call, #call)

static void start(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;

	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
#define FIND(name) *(void **)&name = dlsym(library, #name)
	FIND(cuInit), FIND(cuDevicePrimaryCtxRetain), FIND(cuCtxSetCurrent);
	FIND(cuMemAlloc_v2), FIND(cuMemFree_v2), FIND(cuMemsetD32Async);
	CUDA(cuInit(0));
	CUDA(cuDevicePrimaryCtxRetain(&context, 0));
	CUDA(cuCtxSetCurrent(context));
}

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void report(const char *name, size_t bytes, double *us, int count)
{
	qsort(us, (size_t)count, sizeof(*us), ascending);
	printf("%s %llu %.3f\n", name, bytes / MIB, us[count / 2]);
}

/* `busy`: each block is written before it is freed, so that the free has work to wait for.  */
static void pairs(size_t bytes, int busy)
{
	double us[PAIRS];
	address at;

	for (int i = -20; i < PAIRS; i++) { /* the first ones warm up */
		double begin = now_us();

		CUDA(cuMemAlloc_v2(&at, bytes));
		if (busy)
			CUDA(cuMemsetD32Async(at, 1, bytes / 4, NULL));
		CUDA(cuMemFree_v2(at));
		if (i >= 0)
			us[i] = now_us() - begin;
	}
	report(busy ? "written-pair" : "pair", bytes, us, PAIRS);
}

static void held(size_t bytes)
{
	static address at[HELD];
	double allocated[HELD], freed[HELD];

	for (int i = 0; i < HELD; i++) {
		double begin = now_us();

		CUDA(cuMemAlloc_v2(&at[i], bytes));
		allocated[i] = now_us() - begin;
	}
	for (int i = 0; i < HELD; i++) {
		double begin = now_us();

		CUDA(cuMemFree_v2(at[i * 7 % HELD]));
		freed[i] = now_us() - begin;
	}
	report("allocate-held", bytes, allocated, HELD);
	report("free-held", bytes, freed, HELD);
}

int main(void)
{
	static const size_t sizes[] = {2 * MIB, 4 * MIB, 20 * MIB, 64 * MIB};

	start();
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		pairs(sizes[i], 0);
		pairs(sizes[i], 1);
	}
	held(2 * MIB);
	held(20 * MIB);
	return 0;
}
