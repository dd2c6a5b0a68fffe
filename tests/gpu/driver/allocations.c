/* What allocating and freeing device memory costs, without any allocator in between. Run by allocations.py, which compiles
 * it, with the shim and without; prints one "name microseconds" a line, each the median of many calls.
 *
 *   allocations            cuMemAlloc and cuMemFree: pairs in a loop, and many blocks held
 *   allocations pieces     the calls that a backed block is made of, one by one, and what their options cost  */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB (1ull << 20)
#define PAIRS 400
#define HELD 200
#define POSIX_FILE_DESCRIPTOR 1

struct properties { /* CUmemAllocationProp */
	int type, handle_types, location_type, location;
	void *windows;
	unsigned char compression, rdma;
	unsigned short usage;
	unsigned char reserved[4];
};

struct access { /* CUmemAccessDesc */
	int location_type, location, flags;
};

typedef unsigned long long address;

static int (*cuInit)(unsigned int);
static int (*cuDevicePrimaryCtxRetain)(void **, int);
static int (*cuCtxSetCurrent)(void *);
static int (*cuCtxGetCurrent)(void **);
static int (*cuCtxSynchronize)(void);
static int (*cuDeviceGetAttribute)(int *, int, int);
static int (*cuMemAlloc_v2)(address *, size_t);
static int (*cuMemFree_v2)(address);
static int (*cuMemsetD32Async)(address, unsigned int, size_t, void *);
static int (*cuMemAddressReserve)(address *, size_t, size_t, address, unsigned long long);
static int (*cuMemAddressFree)(address, size_t);
static int (*cuMemCreate)(address *, size_t, const struct properties *, unsigned long long);
static int (*cuMemRelease)(address);
static int (*cuMemMap)(address, size_t, size_t, address, unsigned long long);
static int (*cuMemUnmap)(address, size_t);
static int (*cuMemSetAccess)(address, size_t, const struct access *, size_t);

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
	FIND(cuInit), FIND(cuDevicePrimaryCtxRetain), FIND(cuCtxSetCurrent), FIND(cuCtxGetCurrent);
	FIND(cuCtxSynchronize), FIND(cuDeviceGetAttribute), FIND(cuMemAlloc_v2), FIND(cuMemFree_v2);
	FIND(cuMemsetD32Async), FIND(cuMemAddressReserve), FIND(cuMemAddressFree), FIND(cuMemCreate);
	FIND(cuMemRelease), FIND(cuMemMap), FIND(cuMemUnmap), FIND(cuMemSetAccess);
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

enum { RESERVE, CREATE, MAP, SET_ACCESS, UNMAP, RELEASE, FREE_ADDRESS, STEPS };
static const char *const step_names[] = {"reserve", "create", "map", "set-access", "unmap", "release", "free-address"};

static void pieces(const char *kind, size_t bytes, int handle_types, int rdma)
{
	static double us[STEPS][PAIRS], all[PAIRS];
	struct properties properties = {.type = 1, .handle_types = handle_types, .location_type = 1, .rdma = (unsigned char)rdma};
	struct access access = {1, 0, 3};
	address at, handle;
	char name[64];

	for (int i = 0; i < PAIRS; i++) {
		double t[STEPS + 1];

		t[0] = now_us();
		CUDA(cuMemAddressReserve(&at, bytes, 0, 0, 0)), t[1] = now_us();
		CUDA(cuMemCreate(&handle, bytes, &properties, 0)), t[2] = now_us();
		CUDA(cuMemMap(at, bytes, 0, handle, 0)), t[3] = now_us();
		CUDA(cuMemSetAccess(at, bytes, &access, 1)), t[4] = now_us();
		CUDA(cuMemUnmap(at, bytes)), t[5] = now_us();
		CUDA(cuMemRelease(handle)), t[6] = now_us();
		CUDA(cuMemAddressFree(at, bytes)), t[7] = now_us();
		for (int step = 0; step < STEPS; step++)
			us[step][i] = t[step + 1] - t[step];
		all[i] = t[STEPS] - t[0];
	}
	for (int step = 0; step < STEPS; step++) {
		snprintf(name, sizeof(name), "%s:%s", kind, step_names[step]);
		report(name, bytes, us[step], PAIRS);
	}
	snprintf(name, sizeof(name), "%s:all", kind);
	report(name, bytes, all, PAIRS);
}

static void time_idle_calls(void)
{
	static double synchronise[PAIRS], get_current[PAIRS];
	void *context;

	for (int i = 0; i < PAIRS; i++) {
		double begin = now_us(), middle;

		CUDA(cuCtxSynchronize());
		middle = now_us();
		CUDA(cuCtxGetCurrent(&context));
		synchronise[i] = middle - begin;
		get_current[i] = now_us() - middle;
	}
	report("idle-synchronise", 0, synchronise, PAIRS);
	report("get-current", 0, get_current, PAIRS);
}

int main(int argc, char **argv)
{
	static const size_t sizes[] = {2 * MIB, 4 * MIB, 20 * MIB, 64 * MIB};
	int descriptors = 0, rdma = 0;

	start();
	if (argc > 1 && strcmp(argv[1], "pieces") == 0) {
		cuDeviceGetAttribute(&descriptors, 103, 0); /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
		cuDeviceGetAttribute(&rdma, 110, 0);	    /* GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED */
		time_idle_calls();
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
			pieces("plain", sizes[i], 0, 0);
			if (descriptors)
				pieces("exportable", sizes[i], POSIX_FILE_DESCRIPTOR, 0);
			if (rdma)
				pieces("rdma", sizes[i], 0, 1);
			if (descriptors && rdma)
				pieces("exportable+rdma", sizes[i], POSIX_FILE_DESCRIPTOR, 1);
		}
		return 0;
	}
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		pairs(sizes[i], 0);
		pairs(sizes[i], 1);
	}
	held(2 * MIB);
	held(20 * MIB);
	return 0;
}
