/* Stands between the shim and the driver: answers the shim's cuGetProcAddress with functions that can be told to fail, at
 * their nth call from now, and counts them. Only the shim's own calls come by here, so a test can hit any single step of a
 * move.  */
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#define FAILING_FUNCTIONS(X)                                                                                         \
	X(cuMemCreate) X(cuMemMap) X(cuMemSetAccess) X(cuMemUnmap) X(cuMemRelease) X(cuMemcpyDtoHAsync)              \
	X(cuMemcpyHtoDAsync) X(cuStreamSynchronize) X(cuStreamQuery) X(cuCtxSynchronize) X(cuCtxSetCurrent)          \
	X(cuThreadExchangeStreamCaptureMode)
/* These no move calls: failing_name does not tell of them.  */
#define COUNTED_FUNCTIONS(X)                                                                                         \
	X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemImportFromShareableHandle) X(cuCtxGetCurrent) X(cuCtxPushCurrent) X(cuCtxPopCurrent)         \
	X(cuPointerGetAttribute)

#define DECOMPRESS_ALGORITHM_MASK 136

typedef uintptr_t W;
typedef int (*function)(W, W, W, W, W, W);

enum {
#define NUMBER(name) AT_##name,
	FAILING_FUNCTIONS(NUMBER) MAY_FAIL,
	BEFORE_COUNTED = MAY_FAIL - 1,
	COUNTED_FUNCTIONS(NUMBER) FUNCTIONS
#undef NUMBER
};

static const char *const names[] = {
#define NAME(name) #name,
	FAILING_FUNCTIONS(NAME) COUNTED_FUNCTIONS(NAME)
#undef NAME
};

static function reals[FUNCTIONS];
static unsigned countdowns[FUNCTIONS]; /* 0: does not fail */
static int error, onwards;
static unsigned met;
static unsigned counts[FUNCTIONS];

static int failing(int i, W a, W b, W c, W d, W e, W f)
{
	unsigned left = __atomic_load_n(&countdowns[i], __ATOMIC_ACQUIRE);

	__atomic_add_fetch(&counts[i], 1, __ATOMIC_RELAXED);
	if (left > 1) {
		__atomic_store_n(&countdowns[i], left - 1, __ATOMIC_RELEASE);
	} else if (left == 1) {
		if (!onwards)
			__atomic_store_n(&countdowns[i], 0, __ATOMIC_RELEASE);
		__atomic_add_fetch(&met, 1, __ATOMIC_ACQ_REL);
		return error;
	}
	return reals[i](a, b, c, d, e, f);
}

#define STUB(name)                                                \
	static int stub_##name(W a, W b, W c, W d, W e, W f)      \
	{                                                         \
		return failing(AT_##name, a, b, c, d, e, f);      \
	}
FAILING_FUNCTIONS(STUB)
COUNTED_FUNCTIONS(STUB)

static const function stubs[] = {
#define ADDRESS(name) stub_##name,
	FAILING_FUNCTIONS(ADDRESS) COUNTED_FUNCTIONS(ADDRESS)
};

static int (*get_attribute)(int *, int, int);
static int algorithms; /* of the decompression engine that the device is said to have */

static int answer_attribute(int *value, int attribute, int device)
{
	int result = get_attribute(value, attribute, device);

	if (result == 0 && attribute == DECOMPRESS_ALGORITHM_MASK)
		*value = algorithms;
	return result;
}

int cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status);
void failing_decompresses(int with);
unsigned failing_disarm(void);
const char *failing_name(unsigned i);
unsigned failing_count(const char *name);
unsigned failing_find(const char *name);
void failing_arm(unsigned i, unsigned nth, int with, int for_good);

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
	for (int i = 0; result == 0 && *pfn && i < FUNCTIONS; i++)
		if (strcmp(symbol, names[i]) == 0) {
			memcpy(&reals[i], pfn, sizeof(reals[i]));
			memcpy(pfn, &stubs[i], sizeof(*pfn));
			break;
		}
	return result;
}

void failing_decompresses(int with)
{
	algorithms = with;
}

const char *failing_name(unsigned i)
{
	return i < MAY_FAIL ? names[i] : 0;
}

/* Any function's number, by name.  */
unsigned failing_find(const char *name)
{
	unsigned i = 0;

	while (i < FUNCTIONS && strcmp(name, names[i]) != 0)
		i++;
	return i;
}

/* How often the shim called that function since this was last asked.  */
unsigned failing_count(const char *name)
{
	for (int i = 0; i < FUNCTIONS; i++)
		if (strcmp(name, names[i]) == 0)
			return __atomic_exchange_n(&counts[i], 0, __ATOMIC_RELAXED);
	return 0;
}

/* The nth call of that function from now on fails so, and, `for_good`, all later ones.  */
void failing_arm(unsigned i, unsigned nth, int with, int for_good)
{
	error = with;
	onwards = for_good;
	met = 0;
	__atomic_store_n(&countdowns[i], nth, __ATOMIC_RELEASE);
}

/* How many calls failed.  */
unsigned failing_disarm(void)
{
	for (int i = 0; i < FUNCTIONS; i++)
		__atomic_store_n(&countdowns[i], 0, __ATOMIC_RELEASE);
	return __atomic_load_n(&met, __ATOMIC_ACQUIRE);
}
