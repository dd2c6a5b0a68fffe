// The digest of 2 MiB chunks of device memory; digest_ptx.sh turns it into digest.ptx.
//
// NH, the universal hash of UMAC (Black, Halevi, Krawczyk, Krovetz, Rogaway: "UMAC: Fast and Secure Message
// Authentication", CRYPTO 1999), over 32-bit words with a key as long as the message, four times with the key shifted by
// four words (the Toeplitz construction of the same paper): two different chunks have the same digest with a probability
// of at most 2^-128 over the key. src/mover/copying/digest.c computes the same on the host.

#define DEVICE __attribute__((device))
#define SHARED __attribute__((shared))

extern "C" DEVICE void __syncthreads();

typedef unsigned int u32;
typedef unsigned long long u64;
typedef u32 vector __attribute__((ext_vector_type(4)));

struct result {
	u32 words[8]; // four sums of 64 bits, low halves first
	u32 any;      // all words of the chunk, or'ed: 0 for a chunk of zeros
	u32 pad[7];
};

constexpr u32 THREADS = 256, WARPS = THREADS / 32, PASSES = 4;
constexpr u32 TOGETHER = 2; // chunks a thread block reads at once, so that each word of the key is read half as often
constexpr u32 VECTORS = 2 * 1024 * 1024 / sizeof(vector);

static SHARED u64 block_sums[WARPS][TOGETHER][PASSES];
static SHARED u32 block_any[WARPS][TOGETHER];

static inline DEVICE u32 below(u32 value, int lanes)
{
	return (u32)__nvvm_shfl_sync_down_i32(-1, (int)value, lanes, 31);
}

static inline DEVICE u64 below(u64 value, int lanes)
{
	return (u64)below((u32)(value >> 32), lanes) << 32 | below((u32)value, lanes);
}

// One block of 256 threads for every two chunks. `key`: 2 MiB and 64 bytes.
extern "C" __attribute__((global)) void affinode_digest(const u64 *addresses, u32 count, const vector *key,
							struct result *results)
{
	u32 thread = __nvvm_read_ptx_sreg_tid_x(), first = __nvvm_read_ptx_sreg_ctaid_x() * TOGETHER;
	const vector *chunk[TOGETHER];
	u64 sums[TOGETHER][PASSES] = {};
	u32 any[TOGETHER] = {};

#pragma unroll
	for (u32 c = 0; c < TOGETHER; c++)
		chunk[c] = (const vector *)addresses[first + c < count ? first + c : count - 1];
	for (u32 i = thread; i < VECTORS; i += THREADS) {
		vector words[TOGETHER];

#pragma unroll
		for (u32 c = 0; c < TOGETHER; c++) {
			words[c] = chunk[c][i];
			any[c] |= words[c].x | words[c].y | words[c].z | words[c].w;
		}
#pragma unroll
		for (u32 p = 0; p < PASSES; p++) {
			vector k = key[i + p];

#pragma unroll
			for (u32 c = 0; c < TOGETHER; c++) {
				vector sum = words[c] + k;

				sums[c][p] += (u64)sum.x * sum.y;
				sums[c][p] += (u64)sum.z * sum.w;
			}
		}
	}
#pragma unroll
	for (u32 c = 0; c < TOGETHER; c++) {
#pragma unroll
		for (int lanes = 16; lanes; lanes /= 2) {
			any[c] |= below(any[c], lanes);
#pragma unroll
			for (u32 p = 0; p < PASSES; p++)
				sums[c][p] += below(sums[c][p], lanes);
		}
		if (thread % 32 == 0) {
			block_any[thread / 32][c] = any[c];
#pragma unroll
			for (u32 p = 0; p < PASSES; p++)
				block_sums[thread / 32][c][p] = sums[c][p];
		}
	}
	__syncthreads();
	if (thread >= TOGETHER || first + thread >= count)
		return;
	struct result *result = &results[first + thread];
	u32 all = 0;

	for (u32 p = 0; p < PASSES; p++) {
		u64 sum = 0;

		for (u32 w = 0; w < WARPS; w++)
			sum += block_sums[w][thread][p];
		result->words[2 * p] = (u32)sum;
		result->words[2 * p + 1] = (u32)(sum >> 32);
	}
	for (u32 w = 0; w < WARPS; w++)
		all |= block_any[w][thread];
	result->any = all;
	for (u32 i = 0; i < 7; i++)
		result->pad[i] = 0;
}
