#define _GNU_SOURCE
#include "mover/copying/digest.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/monotonic_futex.h"
#include "base/per_process.h"
#include "driver/real_driver.h"
#include "mover/digest_ptx.h"

#define PASSES 4
#define CHUNK_WORDS (CHUNK_BYTES / 4)
#define KEY_BYTES (CHUNK_BYTES + 64)
#define THREADS 256
#define CHUNKS_A_BLOCK 2
/* A launch's worth: 32 GiB; its addresses and results take 1.1 MiB of host memory.  */
#define BATCH 16384

/* As the kernel writes it.  */
struct result {
	struct digest digest;
	uint32_t any;
	uint32_t pad[7];
};

/* What the module needs in one context.  */
struct digester {
	CUmodule module;
	CUfunction function;
	CUstream stream; /* of its own: memory is looked at beside copies of other memory */
	CUdeviceptr key;
	struct batch *batch;
};

/* Pinned host memory that the kernel reads and writes itself: a copy would wait for those of other memory, and by the time that it was
 * done the link would have nothing to do (windows of a streaming park took 4.4 ms instead of 2.8 on an H200). Of the mover's thread
 * alone.  */
struct batch {
	CUdeviceptr addresses[BATCH];
	struct result results[BATCH];
};

static OF_PROCESS pthread_mutex_t key_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t *key_words;

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

/* Of the batch's first `count` addresses, in the current context. Waits for it.  */
static CUresult launch(const struct digester *digester, uint32_t count)
{
	CUdeviceptr addresses = (CUdeviceptr)(uintptr_t)digester->batch->addresses;
	CUdeviceptr results = (CUdeviceptr)(uintptr_t)digester->batch->results, key = digester->key;
	void *arguments[] = {&addresses, &count, &key, &results};
	CUresult result = driver.cuLaunchKernel(digester->function, (count + CHUNKS_A_BLOCK - 1) / CHUNKS_A_BLOCK, 1, 1, THREADS,
						1, 1, 0, digester->stream, arguments, NULL);
	CUresult waited = driver.cuStreamSynchronize(digester->stream);

	/* Whatever it said: memory must not go while it may still be read.  */
	while (waited != CUDA_SUCCESS && driver.cuStreamQuery(digester->stream) == CUDA_ERROR_NOT_READY)
		clock_sleep_ns(MS_NS);
	return result == CUDA_SUCCESS ? waited : result;
}

/* Of BATCH chunks at most, in the current context.  */
static CUresult compute_batch(struct context *context, struct digested **items, size_t count)
{
	struct digester *digester = context->digester;
	struct batch *batch = digester->batch;
	CUresult result;

	for (size_t i = 0; i < count; i++)
		batch->addresses[i] = items[i]->address;
	result = launch(digester, (uint32_t)count);
	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
		items[i]->digest = batch->results[i].digest;
		items[i]->zero = batch->results[i].any == 0;
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
	if (digester->stream)
		driver.cuStreamDestroy(digester->stream);
	if (digester->module)
		driver.cuModuleUnload(digester->module);
	if (digester->batch)
		driver.cuMemFreeHost(digester->batch);
	if (digester->key)
		driver.cuMemFree(digester->key);
	free(digester);
}

/* Digest the key with itself, there and here.  */
static CUresult try_it(struct digester *digester, const uint32_t *k)
{
	struct digest expected;
	CUresult result = driver.cuMemcpyHtoDAsync(digester->key, k, KEY_BYTES, digester->stream);

	digest_on_host(k, k, &expected);
	digester->batch->addresses[0] = digester->key;
	if (result == CUDA_SUCCESS)
		result = launch(digester, 1);
	if (result == CUDA_SUCCESS && memcmp(&digester->batch->results[0].digest, &expected, sizeof(expected)) != 0)
		result = CUDA_ERROR_NOT_SUPPORTED;
	return result;
}

/* What takes room on the GPU comes first, so that to try in vain on a full one costs little.  */
static CUresult make(struct digester *digester, const uint32_t *k)
{
	CUresult result = driver.cuMemAlloc(&digester->key, KEY_BYTES);
	void *pinned = NULL;

	if (result == CUDA_SUCCESS)
		result = driver.cuModuleLoadData(&digester->module, digest_ptx);
	if (result == CUDA_SUCCESS)
		result = driver.cuModuleGetFunction(&digester->function, digester->module, "affinode_digest");
	if (result == CUDA_SUCCESS)
		result = driver.cuMemHostAlloc(&pinned, sizeof(*digester->batch), CU_MEMHOSTALLOC_PORTABLE);
	digester->batch = pinned;
	if (result == CUDA_SUCCESS)
		result = driver.cuStreamCreate(&digester->stream, CU_STREAM_NON_BLOCKING);
	return result == CUDA_SUCCESS ? try_it(digester, k) : result;
}

void digest_make_ready(struct context *context)
{
	bool lacked_room = context->digests_lack_room;
	const uint32_t *k = key();
	struct digester *digester;
	CUresult result;

	if (context->digester)
		return;
	digester = k ? calloc(1, sizeof(*digester)) : NULL;
	if (!digester)
		return;
	result = make(digester, k);
	context->digests_lack_room = result == CUDA_ERROR_OUT_OF_MEMORY;
	if (result == CUDA_SUCCESS) {
		context->digester = digester;
		return;
	}
	release(digester);
	if (!context->digests_lack_room)
		log_line("no digests in this context: everything is copied, and nothing is verified or goes to disk");
	else if (!lacked_room)
		log_line("no room for digests: until there is, everything is copied, and nothing is verified or goes to disk");
}

void digest_forget(struct context *context)
{
	/* Its memory went with the context.  */
	free(atomic_exchange(&context->digester, NULL));
	context->digests_lack_room = false;
}
