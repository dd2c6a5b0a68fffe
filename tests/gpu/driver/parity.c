/* What a program can ask about its device memory, asked and printed in words that do not depend on where the memory lies.
 * Run by parity.py with the shim and without: backed memory has to answer as the driver's does.  */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1ull << 20)
#define ATTRIBUTES 21

enum { CONTEXT = 1, DEVICE_POINTER = 3, HOST_POINTER = 4, P2P_TOKENS = 5, SYNC_MEMOPS = 6, BUFFER_ID = 7,
       RANGE_START = 11, MAPPING_BASE = 19, BLOCK_ID = 20 };

typedef unsigned long long address;

static int (*cuInit)(unsigned int);
static int (*cuDevicePrimaryCtxRetain)(void **, int);
static int (*cuCtxSetCurrent)(void *);
static int (*cuCtxSynchronize)(void);
static int (*cuMemAlloc_v2)(address *, size_t);
static int (*cuMemAllocPitch_v2)(address *, size_t *, size_t, size_t, unsigned int);
static int (*cuMemFree_v2)(address);
static int (*cuMemFreeAsync)(address, void *);
static int (*cuMemGetAddressRange_v2)(address *, size_t *, address);
static int (*cuPointerGetAttribute)(void *, int, address);
static int (*cuPointerGetAttributes)(unsigned int, int *, void **, address);
static int (*cuPointerSetAttribute)(const void *, int, address);
static int (*cuMemRetainAllocationHandle)(address *, void *);
static int (*cuMemsetD8_v2)(address, unsigned char, size_t);
static int (*cuMemcpyDtoH_v2)(void *, address, size_t);

static void *context;

static void start(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
#define FIND(name) *(void **)&name = dlsym(library, #name)
	FIND(cuInit), FIND(cuDevicePrimaryCtxRetain), FIND(cuCtxSetCurrent), FIND(cuCtxSynchronize);
	FIND(cuMemAlloc_v2), FIND(cuMemAllocPitch_v2), FIND(cuMemFree_v2), FIND(cuMemFreeAsync);
	FIND(cuMemGetAddressRange_v2), FIND(cuPointerGetAttribute), FIND(cuPointerGetAttributes);
	FIND(cuPointerSetAttribute), FIND(cuMemRetainAllocationHandle), FIND(cuMemsetD8_v2), FIND(cuMemcpyDtoH_v2);
	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) {
		fprintf(stderr, "no GPU\n");
		exit(1);
	}
}

/* Addresses relative to the block, the context by name, and of ids only whether there is one.  */
static void print_value(int attribute, unsigned long long value, address base)
{
	switch (attribute) {
	case CONTEXT:
		printf("%s", value == (unsigned long long)context ? "ours" : value ? "another" : "none");
		break;
	case DEVICE_POINTER:
	case HOST_POINTER:
	case RANGE_START:
	case MAPPING_BASE:
		if (value)
			printf("base%+lld", (long long)(value - base));
		else
			printf("0");
		break;
	case BUFFER_ID:
	case BLOCK_ID:
		printf("%s", value ? "an id" : "no id");
		break;
	default:
		printf("%llu", value);
	}
}

static void ask(const char *what, address base, address at)
{
	unsigned long long together[ATTRIBUTES + 1][2] = {{0}};
	int asked[ATTRIBUTES], count = 0, result;
	void *data[ATTRIBUTES];
	address start = 0;
	size_t size = 0;

	for (int attribute = 1; attribute <= ATTRIBUTES; attribute++) {
		unsigned long long value[2] = {0}; /* tokens take two words */

		result = cuPointerGetAttribute(value, attribute, at);
		printf("%s: attribute %d: %d ", what, attribute, result);
		if (result == 0)
			print_value(attribute, value[0], base);
		printf("\n");
		if (attribute != P2P_TOKENS) {
			data[count] = together[attribute];
			asked[count++] = attribute;
		}
	}
	result = cuPointerGetAttributes((unsigned int)count, asked, data, at);
	printf("%s: attributes together: %d", what, result);
	for (int i = 0; result == 0 && i < count; i++) {
		printf(" %d=", asked[i]);
		print_value(asked[i], together[asked[i]][0], base);
	}
	result = cuMemGetAddressRange_v2(&start, &size, at);
	printf("\n%s: range: %d", what, result);
	if (result == 0)
		printf(" base%+lld %zu", (long long)(start - base), size);
	printf(", only its size: %d, only its base: %d\n", cuMemGetAddressRange_v2(NULL, &size, at),
	       cuMemGetAddressRange_v2(&start, NULL, at));
}

static void set_sync_memops(address at)
{
	unsigned int on = 1, off = 0, now = 7;

	printf("SYNC_MEMOPS: on %d", cuPointerSetAttribute(&on, SYNC_MEMOPS, at));
	printf(", %d", cuPointerGetAttribute(&now, SYNC_MEMOPS, at));
	printf(" %u, off %d", now, cuPointerSetAttribute(&off, SYNC_MEMOPS, at + 100));
	printf(", %d", cuPointerGetAttribute(&now, SYNC_MEMOPS, at));
	printf(" %u; NULL %d", now, cuPointerSetAttribute(NULL, SYNC_MEMOPS, at));
	printf(", another attribute %d\n", cuPointerSetAttribute(&on, BUFFER_ID, at));
}

static int ids_differ(int attribute, address first, address second)
{
	unsigned long long ids[2] = {0};

	cuPointerGetAttribute(&ids[0], attribute, first);
	cuPointerGetAttribute(&ids[1], attribute, second);
	return ids[0] != ids[1];
}

static void block(size_t bytes)
{
	address at = 0, second = 0, handle = 0;
	unsigned char byte = 0;
	char what[64];
	int freed;

	snprintf(what, sizeof(what), "%zu bytes", bytes);
	printf("%s: allocate %d, again %d\n", what, cuMemAlloc_v2(&at, bytes), cuMemAlloc_v2(&second, bytes));
	printf("%s: aligned to %d bytes\n", what, at % 512 == 0 ? 512 : 0);
	ask(what, at, at);
	printf("inside, ");
	ask(what, at, at + bytes / 2 + 1);
	printf("at the end, ");
	ask(what, at, at + bytes - 1);
	printf("%s: ids differ: %d, those of their memory: %d\n", what, ids_differ(BUFFER_ID, at, second),
	       ids_differ(BLOCK_ID, at, second));
	printf("%s: a handle of it: %d\n", what, cuMemRetainAllocationHandle(&handle, (void *)(size_t)at));
	set_sync_memops(at);
	printf("%s: fill %d", what, cuMemsetD8_v2(at, 9, bytes));
	printf(", its last byte %d", cuMemcpyDtoH_v2(&byte, at + bytes - 1, 1));
	printf(" %u\n", byte);
	printf("%s: free inside %d", what, cuMemFree_v2(at + 512));
	printf(", free %d", cuMemFree_v2(at));
	freed = cuMemFree_v2(at);
	printf(", again %d", freed);
	printf(", asynchronously %d", cuMemFreeAsync(second, NULL));
	printf(", again %d, settled %d\n", cuMemFreeAsync(second, NULL), cuCtxSynchronize());
	printf("freed, ");
	ask(what, at, at);
}

int main(void)
{
	size_t pitch = 0;
	address at = 0;

	start();
	block(2 * MIB);
	block(3 * MIB + 4096);
	block(20 * MIB + 1);
	printf("free nothing: %d\n", cuMemFree_v2(0));
	printf("no bytes: %d, no place: %d, too many: %d\n", cuMemAlloc_v2(&at, 0), cuMemAlloc_v2(NULL, 4 * MIB),
	       cuMemAlloc_v2(&at, 1ull << 50));
	printf("pitched: %d", cuMemAllocPitch_v2(&at, &pitch, 3001, 1500, 4));
	printf(" %zu\n", pitch);
	ask("pitched", at, at + pitch);
	printf("pitched: free %d\n", cuMemFree_v2(at));
	printf("pitched: no width %d", cuMemAllocPitch_v2(&at, &pitch, 0, 1500, 4));
	printf(", no height %d", cuMemAllocPitch_v2(&at, &pitch, 4096, 0, 4));
	printf(", wrong element %d\n", cuMemAllocPitch_v2(&at, &pitch, 4096, 1500, 3));
	return 0;
}
