/* The kernels that the simulated GPU knows. kernels.ptx, and jupyter_affinode/bench/test_pattern.ptx, have the same ones for a
 * real GPU, but for the shim's own digest (digest.c).  */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "kernel/module.h"
#include "memory/ranges.h"

#define PIECE (1ull << 20) /* elements between two looks at the table of ranges */
#define POLL_NS 50000

bool kernel_hold(CUstream stream, uint64_t address, uint64_t size, uint64_t alignment, bool write)
{
	ranges_read();
	if (!(address % alignment) && ranges_accessible(stream->context, address, size, write))
		return true;
	ranges_done();
	return false;
}

/* Runs `body` for every i in [0, count) of the array at `address`, holding the table for a piece at a time.  */
#define EACH(stream, type, address, count, body)                                                                      \
	do {                                                                                                          \
		for (uint64_t first_ = 0; first_ < (count); first_ += PIECE) {                                        \
			uint64_t end_ = (count) - first_ < PIECE ? (count) : first_ + PIECE;                          \
			type *element = (type *)(address);                                                            \
                                                                                                                      \
			if (!kernel_hold(stream, (address) + first_ * sizeof(type), (end_ - first_) * sizeof(type),   \
					 sizeof(type), true))                                                         \
				return CUDA_ERROR_ILLEGAL_ADDRESS;                                                    \
			for (uint64_t i = first_; i < end_; i++)                                                      \
				body;                                                                                 \
			ranges_done();                                                                                \
		}                                                                                                     \
		return CUDA_SUCCESS;                                                                                  \
	} while (0)

static CUresult fill_u32(CUstream stream, const uint64_t *p)
{
	EACH(stream, uint32_t, p[0], p[1], element[i] = (uint32_t)p[2]);
}

static CUresult pattern_u32(CUstream stream, const uint64_t *p)
{
	uint32_t seed = (uint32_t)p[2];

	EACH(stream, uint32_t, p[0], p[1],
	     element[i] = (seed * 2654435761u + (uint32_t)i * 2246822519u) ^ (uint32_t)(i >> 15));
}

static CUresult add_u32(CUstream stream, const uint64_t *p)
{
	EACH(stream, uint32_t, p[0], p[1], element[i] += (uint32_t)p[2]);
}

static uint64_t mix(uint64_t state, uint64_t index)
{
	uint64_t z = state + (index + 1) * 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return state ? z ^ z >> 31 : 0;
}

static CUresult random_u64(CUstream stream, const uint64_t *p)
{
	EACH(stream, uint64_t, p[0], p[1], element[i] = mix(p[2], i));
}

static CUresult differ_u64(CUstream stream, const uint64_t *p)
{
	uint64_t differ = 0;

	for (uint64_t first = 0; first < p[1]; first += PIECE) {
		uint64_t end = p[1] - first < PIECE ? p[1] : first + PIECE;

		if (!kernel_hold(stream, p[0] + first * 8, (end - first) * 8, 8, false))
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		for (uint64_t i = first; i < end; i++)
			differ += ((const uint64_t *)p[0])[i] != mix(p[2], i);
		ranges_done();
	}
	if (!kernel_hold(stream, p[3], 8, 8, true))
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	*(uint64_t *)p[3] += differ;
	ranges_done();
	return CUDA_SUCCESS;
}

static CUresult checksum_u32(CUstream stream, const uint64_t *p)
{
	uint64_t sum = 0;

	for (uint64_t first = 0; first < p[1]; first += PIECE) {
		uint64_t end = p[1] - first < PIECE ? p[1] : first + PIECE;

		if (!kernel_hold(stream, p[0] + first * 4, (end - first) * 4, 4, false))
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		for (uint64_t i = first; i < end; i++)
			sum += ((const uint32_t *)p[0])[i];
		ranges_done();
	}
	if (!kernel_hold(stream, p[2], 8, 8, true))
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	*(uint64_t *)p[2] = sum;
	ranges_done();
	return CUDA_SUCCESS;
}

static bool abandoned(CUstream stream)
{
	return __atomic_load_n(&stream->context->abandoned, __ATOMIC_ACQUIRE);
}

static void nap(uint64_t ns)
{
	struct timespec time = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};

	nanosleep(&time, NULL);
}

/* The GPU is busy, the host's processor is not.  */
static CUresult spin_ns(CUstream stream, const uint64_t *p)
{
	uint64_t end = monotonic_ns() + p[0], now;

	while ((now = monotonic_ns()) < end && !abandoned(stream))
		nap(end - now < 10000000 ? end - now : 10000000);
	return CUDA_SUCCESS;
}

static CUresult wait_flag(CUstream stream, const uint64_t *p)
{
	uint32_t flag = 0;

	while (!flag && !abandoned(stream)) {
		if (!kernel_hold(stream, p[0], 4, 4, false))
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		flag = __atomic_load_n((const uint32_t *)p[0], __ATOMIC_ACQUIRE);
		ranges_done();
		if (!flag)
			nap(POLL_NS);
	}
	return CUDA_SUCCESS;
}

static const struct kernel kernels[] = {
	{"affinode_fill_u32", 3, {8, 8, 4}, fill_u32},
	{"affinode_pattern_u32", 3, {8, 8, 4}, pattern_u32},
	{"affinode_add_u32", 3, {8, 8, 4}, add_u32},
	{"affinode_checksum_u32", 3, {8, 8, 8}, checksum_u32},
	{"affinode_random_u64", 3, {8, 8, 8}, random_u64},
	{"affinode_differ_u64", 4, {8, 8, 8, 8}, differ_u64},
	{"affinode_spin_ns", 1, {8}, spin_ns},
	{"affinode_wait_flag", 1, {8}, wait_flag},
	{"affinode_digest", 4, {8, 4, 8, 8}, digest_kernel},
};

const struct kernel *kernel_named(const char *name)
{
	for (unsigned i = 0; i < sizeof(kernels) / sizeof(*kernels); i++)
		if (!strcmp(kernels[i].name, name))
			return &kernels[i];
	return NULL;
}
