/* Calls every driver entry point in every way a program can get at it and compares what arrives with what was passed.
 *
 * Usage: caller SEED ROUNDS shim|bare. Exit status 0: everything arrived; 1: told on stdout what did not.
 * "shim": also checks that what waits at a closed gate is not the driver's own function, wherever it was asked for.  */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "caller.h"

#define LEGACY_STREAM 1
#define PER_THREAD_DEFAULT_STREAM 2
#define ARENA_BYTES 65536
#define MOST_COMPLAINTS 40

typedef unsigned int (*get_v1)(const char *, void **, int, uint64_t);
typedef unsigned int (*get_v2)(const char *, void **, int, uint64_t, int *);

static void *libcuda;
static uint64_t random_state;
static int complaints;

/* Pointers that are passed point in here: a hook may look at what they point to, and finds zeros.  */
static unsigned char arena[ARENA_BYTES] __attribute__((aligned(64)));

static uint64_t random_word(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state * 0x2545f4914f6cdd1dull;
}

static bool may_complain(void)
{
	return ++complaints <= MOST_COMPLAINTS;
}

/* The ways. Each returns the function a program would call, NULL when there is none.  */

static void *by_dlsym(const struct callee *callee)
{
	return dlsym(libcuda, callee->name);
}

static void *by_default_scope(const struct callee *callee)
{
	return dlsym(RTLD_DEFAULT, callee->name);
}

static uint64_t flags_for(const struct callee *callee)
{
	return callee->per_thread ? PER_THREAD_DEFAULT_STREAM : LEGACY_STREAM;
}

static void *ask_v1(void *getter, const struct callee *callee)
{
	void *function = NULL;

	if (((get_v1)getter)(callee->base, &function, callee->since, flags_for(callee)) != 0)
		return NULL;
	return function;
}

static void *ask_v2(void *getter, const struct callee *callee)
{
	void *function = NULL;
	int status = -1;

	if (((get_v2)getter)(callee->base, &function, callee->since, flags_for(callee), &status) != 0 || status != 0)
		return NULL;
	return function;
}

static void *by_get_proc_address(const struct callee *callee)
{
	return ask_v2(dlsym(libcuda, "cuGetProcAddress_v2"), callee);
}

static void *by_old_get_proc_address(const struct callee *callee)
{
	return ask_v1(dlsym(libcuda, "cuGetProcAddress"), callee);
}

static void *by_got_get_proc_address(const struct callee *callee)
{
	void *getter = NULL;
	int status;

	((get_v2)dlsym(libcuda, "cuGetProcAddress_v2"))("cuGetProcAddress", &getter, 13000, LEGACY_STREAM, &status);
	return getter ? ask_v2(getter, callee) : NULL;
}

static void *by_linking(const struct callee *callee)
{
	return callee->linked;
}

static const struct way {
	const char *name;
	void *(*find)(const struct callee *);
} ways[] = {
	{"dlsym", by_dlsym},
	{"dlsym of the default scope", by_default_scope},
	{"cuGetProcAddress_v2", by_get_proc_address},
	{"cuGetProcAddress", by_old_get_proc_address},
	{"cuGetProcAddress got by cuGetProcAddress_v2", by_got_get_proc_address},
	{"linking", by_linking},
};

/* The width of the argument that `*code` stands for, in bytes; moves on to the next code.  */
static unsigned int take_code(const char **code)
{
	char *end;
	unsigned long width;

	switch (*(*code)++) {
	case 'c':
		return 1;
	case 's':
		return 2;
	case 'i':
	case 'f':
		return 4;
	case '{':
		width = strtoul(*code, &end, 10);
		*code = end + 1;
		return (unsigned int)width;
	default:
		return 8;
	}
}

/* Random arguments for a signature, one after another as the driver will record them; returns their size.  */
static unsigned int make_arguments(const char *signature, unsigned char *bytes)
{
	unsigned int size = 0;

	while (*signature) {
		bool pointer = *signature == 'p';
		unsigned int width = take_code(&signature);

		for (unsigned int i = 0; i < width; i += 8) {
			uint64_t word = random_word();

			if (pointer)
				word = (uintptr_t)&arena[word % (ARENA_BYTES / 64 - 64) * 64];
			memcpy(bytes + size + i, &word, width - i < 8 ? width - i : 8);
		}
		size += width;
	}
	return size;
}

static void complain_about_arguments(const struct callee *callee, const struct way *way,
				     const struct recording *got, const unsigned char *bytes, unsigned int size)
{
	if (!may_complain())
		return;
	printf("%s(%s) by %s: called %u times, %u of %u bytes\n", callee->name, callee->signature, way->name,
	       got->calls, got->size, size);
	for (unsigned int i = 0; i < size && got->calls; i++)
		if (got->bytes[i] != bytes[i]) {
			printf("\tthe first wrong byte is %u: %02x for %02x\n", i, got->bytes[i], bytes[i]);
			break;
		}
}

static void call_once(unsigned int index, const struct way *way, void *function)
{
	const struct callee *callee = &callees[index];
	struct recording *got = recording_of(index);
	unsigned char bytes[RECORDING_BYTES];
	unsigned int answer, size = make_arguments(callee->signature, bytes);

	memset(arena, 0, sizeof(arena));
	memset(got, 0, sizeof(*got));
	answer = callee->call(function, bytes);
	if (got->calls != 1 || got->size != size || memcmp(got->bytes, bytes, size) != 0)
		complain_about_arguments(callee, way, got, bytes, size);
	if (answer != RECORDING_ANSWER(index) && may_complain())
		printf("%s by %s returned %#x, not %#x\n", callee->name, way->name, answer, RECORDING_ANSWER(index));
}

/* Returns how many calls were made.  */
static unsigned long call_everything(int rounds, bool shim)
{
	unsigned long calls = 0;

	for (unsigned int index = 0; callees[index].name; index++) {
		for (unsigned int w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
			const struct callee *callee = &callees[index];
			void *function = ways[w].find(callee);

			if (!function) {
				if ((callee->linked || ways[w].find != by_linking) && may_complain())
					printf("%s cannot be had by %s\n", callee->name, ways[w].name);
				continue;
			}
			if (shim && callee->waits && function == recording_address(index) && may_complain())
				printf("%s by %s is the driver's own: the gate is passed by\n", callee->name,
				       ways[w].name);
			for (int round = 0; round < rounds; round++, calls++)
				call_once(index, &ways[w], function);
		}
	}
	return calls;
}

/* A cuInit that succeeds, after which the shim is at work: enum affinode_state says 1, resident.  */
static bool initialise(bool shim)
{
	unsigned int (*init)(unsigned int);
	int (*state)(void);
	unsigned int answer;

	*(void **)&init = dlsym(libcuda, "cuInit");
	recording_let_init_succeed(1);
	answer = init(0);
	recording_let_init_succeed(0);
	if (answer != 0)
		printf("cuInit returned %#x\n", answer);
	if (answer != 0 || !shim)
		return answer == 0;
	*(void **)&state = dlsym(RTLD_DEFAULT, "affinode_state");
	if (state && state() == 1)
		return true;
	printf("the shim is not at work: its state is %d\n", state ? state() : -1);
	return false;
}

int main(int argc, char **argv)
{
	unsigned long calls;
	bool shim;

	if (argc != 4 || (strcmp(argv[3], "shim") != 0 && strcmp(argv[3], "bare") != 0)) {
		fprintf(stderr, "usage: caller SEED ROUNDS shim|bare\n");
		return 2;
	}
	random_state = strtoull(argv[1], NULL, 10) * 2 + 1;
	shim = strcmp(argv[3], "shim") == 0;
	libcuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (!libcuda) {
		printf("%s\n", dlerror());
		return 1;
	}
	/* Before cuInit the shim only passes on; after it, hooks and gate are at work.  */
	calls = call_everything(atoi(argv[2]), shim);
	if (!initialise(shim))
		return 1;
	calls += call_everything(atoi(argv[2]), shim);
	printf("%lu calls, %d complaints, seed %s\n", calls, complaints, argv[1]);
	return complaints ? 1 : 0;
}
