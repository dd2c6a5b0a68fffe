/* The mover's digest kernel, built in as the others are: a real GPU compiles it from the shim's PTX.
 *
 * NH of UMAC (RFC 4418, 5.2) over 2 MiB chunks, four passes with the Toeplitz construction: each pass shifts the key by
 * four words. The chunk's words are m[0..N), the key's k[0..N + 12):
 *
 *   h[p] = sum over j < N / 2 of (m[2j] + k[2j + 4p]) * (m[2j + 1] + k[2j + 1 + 4p])   modulo 2^64,
 *
 * sums inside modulo 2^32.  */
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "kernel/module.h"
#include "memory/ranges.h"
#include "vmm/vmm.h"

#define CHUNK_BYTES (2ull << 20)
#define WORDS (CHUNK_BYTES / 4)
#define PASSES 4u
#define SHIFT 4u
#define KEY_WORDS (WORDS + (PASSES - 1) * SHIFT)
#define LANES 4u
#define LOAD_BYTES 16u /* what one thread of the real kernel loads at once, and so the alignment it needs */

struct result {
	uint32_t words[2 * PASSES];
	uint32_t or_of_all;
	uint32_t padding[7];
};

struct digest {
	uint64_t h[PASSES];
	uint32_t or_of_all;
};

typedef uint32_t lanes32 __attribute__((vector_size(4 * LANES)));
typedef uint64_t lanes64 __attribute__((vector_size(4 * LANES)));

static inline lanes32 load(const uint32_t *at)
{
	lanes32 value;

	memcpy(&value, at, sizeof(value));
	return value;
}

/* Of each pair of words their product. Compilers make three multiplications of a lane of 64 bits.  */
static inline lanes64 products(lanes64 pairs)
{
#ifdef __SSE2__
	return (lanes64)_mm_mul_epu32((__m128i)pairs, (__m128i)(pairs >> 32));
#else
	return (pairs & 0xffffffffu) * (pairs >> 32);
#endif
}

static void nh(const uint32_t *m, const uint32_t *k, struct digest *digest)
{
	lanes64 sums[PASSES] = {{0}};
	lanes32 or = {0};

	for (uint64_t i = 0; i < WORDS; i += LANES) {
		lanes32 message = load(m + i);

		or |= message;
		for (unsigned p = 0; p < PASSES; p++)
			sums[p] += products((lanes64)(message + load(k + i + SHIFT * p)));
	}
	for (unsigned p = 0; p < PASSES; p++) {
		digest->h[p] = 0;
		for (unsigned i = 0; i < LANES / 2; i++)
			digest->h[p] += sums[p][i];
	}
	digest->or_of_all = 0;
	for (unsigned i = 0; i < LANES; i++)
		digest->or_of_all |= or[i];
}

static uint32_t zeros[WORDS]; /* never written; constants would be 2 MiB more of the library */

/* The same word again and again, and the first is zero.  */
static bool is_zero(const uint32_t *m)
{
	return !m[0] && !memcmp(m, m + 1, CHUNK_BYTES - 4);
}

/* One launch: the key's address, and what it makes of a chunk of zeros, once it was needed.  */
struct run {
	CUstream stream;
	uint64_t key;
	struct digest of_zeros;
	bool has_zeros;
};

static bool digest_chunk(struct run *run, uint64_t address, struct digest *digest)
{
	const uint32_t *chunk = (const uint32_t *)address, *key = (const uint32_t *)run->key;

	if (!kernel_hold(run->stream, address, CHUNK_BYTES, LOAD_BYTES, false))
		return false;
	if (run->key % LOAD_BYTES || !ranges_accessible(run->stream->context, run->key, 4 * KEY_WORDS, false)) {
		ranges_done();
		return false;
	}
	if (!vmm_is_blank(address, CHUNK_BYTES) && !is_zero(chunk)) {
		nh(chunk, key, digest);
	} else {
		if (!run->has_zeros)
			nh(zeros, key, &run->of_zeros);
		run->has_zeros = true;
		*digest = run->of_zeros;
	}
	ranges_done();
	return true;
}

static bool copy_in(CUstream stream, void *to, uint64_t from, uint64_t size, uint64_t alignment)
{
	if (!kernel_hold(stream, from, size, alignment, false))
		return false;
	memcpy(to, (const void *)from, size);
	ranges_done();
	return true;
}

static bool write_result(CUstream stream, uint64_t to, const struct digest *digest)
{
	struct result result = {.or_of_all = digest->or_of_all};

	for (unsigned p = 0; p < PASSES; p++) {
		result.words[2 * p] = (uint32_t)digest->h[p];
		result.words[2 * p + 1] = (uint32_t)(digest->h[p] >> 32);
	}
	if (!kernel_hold(stream, to, sizeof(result), 4, true))
		return false;
	memcpy((void *)to, &result, sizeof(result));
	ranges_done();
	return true;
}

/* One launch makes all results, whatever its shape. Parameters: addresses of the chunks (64-bit words), their count, the
 * key (32-bit words), the results.  */
CUresult digest_kernel(CUstream stream, const uint64_t *p)
{
	struct run run = {.stream = stream, .key = p[2]};

	for (uint64_t i = 0; i < p[1]; i++) {
		struct digest digest;
		uint64_t address;

		if (!copy_in(stream, &address, p[0] + 8 * i, 8, 8) || !digest_chunk(&run, address, &digest) ||
		    !write_result(stream, p[3] + sizeof(struct result) * i, &digest))
			return CUDA_ERROR_ILLEGAL_ADDRESS;
	}
	return CUDA_SUCCESS;
}
