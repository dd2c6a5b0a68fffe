#define _GNU_SOURCE
#include "mover/digest.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/per_process.h"
#include "driver/real_driver.h"
#include "mover/digest_ptx.h"

#define PASSES 4
#define CHUNK_WORDS (CHUNK_BYTES / 4)
#define KEY_BYTES (CHUNK_BYTES + 64)
#define THREADS 256
#define CHUNKS_A_BLOCK 2
/* A launch's worth: 32 GiB; its addresses and results take 1.1 MiB of the GPU.  */
#define BATCH 16384

/* As the kernel writes it.  */
struct result {
	struct digest digest;
	uint32_t any;
	uint32_t pad[7];
};

/* What the module needs in one context.  */
struct digester {
	CUfunction function;
	CUstream stream; /* of its own: memory is looked at beside copies of other memory */
	CUdeviceptr key, addresses, results;
};

static OF_PROCESS pthread_mutex_t key_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t *key_words;

/* Of the mover's thread alone.  */
static CUdeviceptr batch_addresses[BATCH];
static struct result batch_results[BATCH];

/* The process's key, drawn at the first use; NULL: no randomness, no digests.  */
static const uint32_t *key(void)
{
	unsigned char *fresh;
	size_t have = 0;

	pthread_mutex_lock(&key_lock);
	fresh = key_words ? NULL : malloc(KEY_BYTES);
	while (fresh && have < KEY_BYTES) {
		long n = syscall(SYS_getrandom, fresh + have, KEY_BYTES - have, 0);

		if (n > 0) {
			have += (size_t)n;
		} else if (errno != EINTR) {
			free(fresh);
			fresh = NULL;
		}
	}
	if (fresh)
		key_words = (uint32_t *)(void *)fresh;
	pthread_mutex_unlock(&key_lock);
	return key_words;
}

static void digest_on_host(const uint32_t *words, const uint32_t *k, struct digest *digest)
{
	for (int pass = 0; pass < PASSES; pass++) {
		uint64_t sum = 0;

		for (size_t i = 0; i < CHUNK_WORDS; i += 2)
			sum += (uint64_t)(words[i] + k[i + 4 * pass]) * (words[i + 1] + k[i + 1 + 4 * pass]);
		digest->words[2 * pass] = (uint32_t)sum;
		digest->words[2 * pass + 1] = (uint32_t)(sum >> 32);
	}
}

/* Of BATCH chunks at most, in the current context.  */
static CUresult compute_batch(struct context *context, struct digested **items, size_t count)
{
	struct digester *digester = context->digester;
	uint32_t n = (uint32_t)count;
	void *arguments[] = {&digester->addresses, &n, &digester->key, &digester->results};
	CUstream stream = digester->stream;
	CUresult result;

	for (size_t i = 0; i < count; i++)
		batch_addresses[i] = items[i]->address;
	result = driver.cuMemcpyHtoDAsync(digester->addresses, batch_addresses, count * sizeof(batch_addresses[0]),
					  stream);
	if (result == CUDA_SUCCESS)
		result = driver.cuLaunchKernel(digester->function, (n + CHUNKS_A_BLOCK - 1) / CHUNKS_A_BLOCK, 1, 1,
					       THREADS, 1, 1, 0, stream, arguments, NULL);
	if (result == CUDA_SUCCESS)
		result = driver.cuMemcpyDtoHAsync(batch_results, digester->results, count * sizeof(batch_results[0]),
						  stream);
	if (result == CUDA_SUCCESS)
		result = driver.cuStreamSynchronize(stream);
	else
		driver.cuStreamSynchronize(stream);
	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
		items[i]->digest = batch_results[i].digest;
		items[i]->zero = batch_results[i].any == 0;
	}
	return result;
}

CUresult digest_compute(struct context *context, struct digested **items, size_t count)
{
	CUresult result = driver.cuCtxSetCurrent(context->handle);

	for (size_t at = 0; at < count && result == CUDA_SUCCESS; at += BATCH)
		result = compute_batch(context, items + at, count - at < BATCH ? count - at : BATCH);
	return result;
}

static void release(struct digester *digester)
{
	CUdeviceptr memory[] = {digester->key, digester->addresses, digester->results};

	for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++)
		if (memory[i])
			driver.cuMemFree(memory[i]);
	free(digester);
}

/* Digest the key with itself, there and here. The batch's buffers belong to the mover: this has its own.  */
static bool works(struct digester *digester, const uint32_t *k)
{
	CUstream stream = digester->stream;
	uint32_t one = 1;
	void *arguments[] = {&digester->addresses, &one, &digester->key, &digester->results};
	struct digest expected;
	struct result got;

	digest_on_host(k, k, &expected);
	return driver.cuMemcpyHtoDAsync(digester->key, k, KEY_BYTES, stream) == CUDA_SUCCESS &&
	       driver.cuMemcpyHtoDAsync(digester->addresses, &digester->key, sizeof(digester->key), stream) ==
		       CUDA_SUCCESS &&
	       driver.cuLaunchKernel(digester->function, 1, 1, 1, THREADS, 1, 1, 0, stream, arguments, NULL) ==
		       CUDA_SUCCESS &&
	       driver.cuMemcpyDtoHAsync(&got, digester->results, sizeof(got), stream) == CUDA_SUCCESS &&
	       driver.cuStreamSynchronize(stream) == CUDA_SUCCESS &&
	       memcmp(&got.digest, &expected, sizeof(expected)) == 0;
}

bool digest_make_ready(struct context *context)
{
	const uint32_t *k = key();
	struct digester *digester;
	CUmodule module;

	if (context->digester)
		return true;
	digester = k ? calloc(1, sizeof(*digester)) : NULL;
	if (!digester)
		return false;
	if (driver.cuModuleLoadData(&module, digest_ptx) == CUDA_SUCCESS &&
	    driver.cuModuleGetFunction(&digester->function, module, "affinode_digest") == CUDA_SUCCESS &&
	    driver.cuMemAlloc(&digester->key, KEY_BYTES) == CUDA_SUCCESS &&
	    driver.cuMemAlloc(&digester->addresses, BATCH * sizeof(batch_addresses[0])) == CUDA_SUCCESS &&
	    driver.cuMemAlloc(&digester->results, BATCH * sizeof(batch_results[0])) == CUDA_SUCCESS &&
	    driver.cuStreamCreate(&digester->stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS && works(digester, k)) {
		context->digester = digester;
		return true;
	}
	log_line("no digests in this context: everything is copied, and nothing is verified");
	release(digester);
	return false;
}

void digest_forget(struct context *context)
{
	/* Its memory went with the context.  */
	free(atomic_exchange(&context->digester, NULL));
}
