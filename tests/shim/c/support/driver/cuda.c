#include "cuda.h"

#include <dlfcn.h>
#include <string.h>

#include "harness.h"
#ifdef SHIM_LINKED
#include "context_depth/context_depth.h"
#include "driver/real_driver.h"
#include "lookup/lookup.h"
#endif

struct cuda cu;
CUcontext cuda_context;

static CUfunction pattern, add, wait_flag, spin;

static const char kernels[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
			      ".visible .entry affinode_pattern_u32()\n{\nret;\n}\n"
			      ".visible .entry affinode_add_u32()\n{\nret;\n}\n"
			      ".visible .entry affinode_wait_flag()\n{\nret;\n}\n"
			      ".visible .entry affinode_spin_ns()\n{\nret;\n}\n";

static void *find(void **handle, const char *library, const char *name)
{
	uintptr_t answer __attribute__((unused));
	void *found;

	if (!*handle)
		*handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
	if (!*handle)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(*handle != NULL);
	found = dlsym(*handle, name);
#ifdef SHIM_LINKED
	if (found && nvml_answer(*handle, name, &answer)) {
		if (answer > 1) /* as dlsym.S has it */
			found = (void *)answer;
	} else if (found && strncmp(name, "nvml", 4) != 0) {
		driver_note_handle(*handle);
		found = wrap_entry_point(name, 0, found);
	}
#endif
	return found;
}

void *cuda_symbol(const char *name)
{
	static void *handle;

	return find(&handle, "libcuda.so.1", name);
}

void *nvml_symbol(const char *name)
{
	static void *handle;

	return find(&handle, "libnvidia-ml.so.1", name);
}

void *cuda_hidden(const char *name)
{
	void *(*next)(void *, const char *);
	void *found;

	*(void **)&next = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
	if (!next)
		*(void **)&next = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
	CHECK(next != NULL);
	found = next(dlopen("libcuda.so.1", RTLD_NOW), name);
	CHECK(found != NULL);
	return found;
}

void *cuda_in_front(const char *name)
{
	void *handle = dlopen("libdecompressing.so", RTLD_NOW), *get = dlsym(handle, "cuGetProcAddress_v2"), *found;

	CHECK(get != NULL);
#ifdef SHIM_LINKED
	driver_note_get_proc_address(get);
#endif
	found = dlsym(handle, name);
	CHECK(found != NULL);
	return found;
}

calling_fn cuda_calling(const char *name)
{
	static void *handle;
	calling_fn found;

	*(void **)&found = find(&handle, "libcalling.so", name);
	CHECK(found != NULL);
	return found;
}

void cuda_load(void)
{
#define LOAD(name, symbol, parameters)                                \
	*(void **)&cu.name = cuda_symbol(symbol);                     \
	if (!cu.name)                                                 \
		test_fail(__FILE__, __LINE__, "no " symbol, 0);
	CUDA_FUNCTIONS(LOAD)
#undef LOAD
}

CUresult load_module(CUmodule *module)
{
	return cu.ModuleLoadData(module, kernels);
}

void cuda_start(void)
{
	CUmodule module;

	cuda_load();
	CUDA(Init(0));
	CUDA(DevicePrimaryCtxRetain(&cuda_context, 0));
	CUDA(CtxSetCurrent(cuda_context));
	CHECK_EQUAL(load_module(&module), CUDA_SUCCESS);
	CUDA(ModuleGetFunction(&pattern, module, "affinode_pattern_u32"));
	CUDA(ModuleGetFunction(&add, module, "affinode_add_u32"));
	CUDA(ModuleGetFunction(&wait_flag, module, "affinode_wait_flag"));
	CUDA(ModuleGetFunction(&spin, module, "affinode_spin_ns"));
}

void cuda_begin(int argc, char **argv, unsigned deadline_s)
{
	test_begin(argc, argv, deadline_s);
	cuda_start();
	controller_accept();
}

static CUresult launch(CUfunction function, CUstream stream, void **parameters)
{
	return cu.LaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

CUresult launch_pattern(CUstream stream, CUdeviceptr to, size_t bytes, uint32_t seed)
{
	uint64_t count = bytes / 4;

	return launch(pattern, stream, (void *[]){&to, &count, &seed});
}

void fill_pattern(CUdeviceptr at, size_t bytes, uint32_t seed)
{
	CHECK_EQUAL(launch_pattern(NULL, at, bytes, seed), CUDA_SUCCESS);
	CUDA(CtxSynchronize());
}

CUdeviceptr cuda_block(size_t bytes, uint32_t seed)
{
	CUdeviceptr at;

	CUDA(MemAlloc(&at, bytes));
	fill_pattern(at, bytes, seed);
	return at;
}

CUresult launch_add(CUstream stream, CUdeviceptr to, size_t bytes, uint32_t addend)
{
	uint64_t count = bytes / 4;

	return launch(add, stream, (void *[]){&to, &count, &addend});
}

CUresult launch_wait_flag(CUstream stream, uint32_t *flag)
{
	uint64_t at = (uintptr_t)flag;

	return launch(wait_flag, stream, (void *[]){&at});
}

CUresult launch_spin(CUstream stream, uint64_t ns)
{
	return launch(spin, stream, (void *[]){&ns});
}

/* Not watched, and several words at a time: millions of reads of a private copy.  */
__attribute__((no_sanitize("thread", "address", "undefined"), optimize("O3"))) static uint32_t differs(
	const uint32_t *words, size_t from, size_t count, uint32_t seed, uint32_t added)
{
	uint32_t wrong = 0;

	for (size_t i = 0; i < count; i++)
		wrong |= words[i] ^ (pattern_word(seed, from + i) + added);
	return wrong;
}

bool holds_pattern(CUdeviceptr at, size_t bytes, uint32_t seed, uint32_t added)
{
	uint32_t words[MiB(1) / 16], wrong = 0; /* by pieces that stay in the cache */
	const size_t count = bytes / 4, most = sizeof(words) / sizeof(*words);

	for (size_t from = 0; from < count; from += most) {
		size_t n = count - from < most ? count - from : most;

		CUDA(MemcpyDtoH(words, at + from * 4, n * 4));
		wrong |= differs(words, from, n, seed, added);
	}
	return !wrong;
}

_Atomic int word_read;

static void *read_word(void *at)
{
	uint32_t word;

	CUDA(CtxSetCurrent(cuda_context));
	atomic_store(&word_read, cu.MemcpyDtoH(&word, (CUdeviceptr)at, sizeof(word)));
	return NULL;
}

void read_a_word(pthread_t *thread, CUdeviceptr at)
{
	atomic_store(&word_read, -1);
	thread_start(thread, read_word, (void *)at);
}

static CUdeviceptr block;

int cuda_block_made(void)
{
	block = cuda_block(MiB(2), 61);
	return block != 0;
}

int cuda_block_right(void)
{
	return holds_pattern(block, MiB(2), 61, 0);
}

const CUmemAllocationProp cuda_prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
const CUmemAccessDesc cuda_access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

CUdeviceptr cuda_map(CUmemGenericAllocationHandle handle, size_t bytes)
{
	CUdeviceptr at;

	CUDA(MemAddressReserve(&at, bytes, 0, 0, 0));
	CUDA(MemMap(at, bytes, 0, handle, 0));
	CUDA(MemSetAccess(at, bytes, &cuda_access, 1));
	return at;
}

size_t cuda_free_bytes(void)
{
	size_t bytes, total;

	CUDA(MemGetInfo(&bytes, &total));
	return bytes;
}

CUdeviceptr cuda_fill(size_t spare)
{
	CUdeviceptr at;

	CUDA(MemAlloc(&at, (cuda_free_bytes() - spare) / MiB(2) * MiB(2)));
	return at;
}

CUdeviceptr cuda_take(size_t spare)
{
	CUresult (*allocate)(CUdeviceptr *, size_t);
	CUdeviceptr at;

	*(void **)&allocate = cuda_hidden("cuMemAlloc_v2");
	CHECK_EQUAL(allocate(&at, (cuda_free_bytes() - spare) / MiB(2) * MiB(2)), CUDA_SUCCESS);
	return at;
}

void cuda_give(CUdeviceptr taken)
{
	CUresult (*give)(CUdeviceptr);

	*(void **)&give = cuda_hidden("cuMemFree_v2");
	CHECK_EQUAL(give(taken), CUDA_SUCCESS);
}
