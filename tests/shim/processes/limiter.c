/* A library that limits what a process may have of a GPU, as sites preload them. How it gets between a program and the driver:
 *   -DEXPORTED  by the driver's names alone
 *   else        by a dlsym of its own, without a version unless the linker gives it one
 *   -DHIDDEN    by one that only programs linked to that version of libc's meet
 *   -DANSWERS   with EXPORTED: and answers cuGetProcAddress
 * -DLIMITS_CREATE: cuMemCreate, too. LIMITER_BYTES is the limit.  */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define OUT_OF_MEMORY 2
#ifdef __aarch64__
#define VERSION "GLIBC_2.17"
#else
#define VERSION "GLIBC_2.2.5"
#endif
#define VISIBLE __attribute__((visibility("default")))

typedef unsigned long long u64;
static u64 allocated;

static void *libcs(void *handle, const char *name)
{
	static void *(*real)(void *, const char *);

	if (!real)
		*(void **)&real = dlvsym(RTLD_NEXT, "dlsym", VERSION);
	return real(handle, name);
}

static void *drivers(const char *name)
{
	return libcs(dlopen("libcuda.so.1", RTLD_LAZY), name);
}

static int too_much(u64 bytes)
{
	return allocated + bytes > strtoull(getenv("LIMITER_BYTES"), NULL, 10);
}

#ifdef EXPORTED
#define HOOKED VISIBLE
#else
#define HOOKED static
#endif

HOOKED int cuMemAlloc_v2(u64 *address, size_t bytes);
HOOKED int cuMemAlloc_v2(u64 *address, size_t bytes)
{
	int (*real)(u64 *, size_t), result = OUT_OF_MEMORY;

	*(void **)&real = drivers("cuMemAlloc_v2");
	if (!too_much(bytes))
		result = real(address, bytes);
	allocated += result ? 0 : bytes;
	return result;
}

#ifdef LIMITS_CREATE
HOOKED int cuMemCreate(u64 *handle, size_t bytes, const void *properties, u64 flags);
HOOKED int cuMemCreate(u64 *handle, size_t bytes, const void *properties, u64 flags)
{
	int (*real)(u64 *, size_t, const void *, u64), result = OUT_OF_MEMORY;

	*(void **)&real = drivers("cuMemCreate");
	if (!too_much(bytes))
		result = real(handle, bytes, properties, flags);
	allocated += result ? 0 : bytes;
	return result;
}
#endif

#if !defined(EXPORTED) || defined(ANSWERS)
HOOKED int cuGetProcAddress_v2(const char *name, void **found, int version, u64 flags, void *status);

static void *hooked(const char *name)
{
	if (strncmp(name, "cuMemAlloc", 10) == 0 && (!name[10] || strcmp(name + 10, "_v2") == 0))
		return cuMemAlloc_v2;
#ifdef LIMITS_CREATE
	if (strcmp(name, "cuMemCreate") == 0)
		return cuMemCreate;
#endif
	return strcmp(name, "cuGetProcAddress_v2") == 0 ? (void *)cuGetProcAddress_v2 : NULL;
}

HOOKED int cuGetProcAddress_v2(const char *name, void **found, int version, u64 flags, void *status)
{
	int (*real)(const char *, void **, int, u64, void *), result;

	*(void **)&real = drivers("cuGetProcAddress_v2");
	result = real(name, found, version, flags, status);
	if (!result && hooked(name))
		*found = hooked(name);
	return result;
}
#endif

#ifndef EXPORTED
#ifdef HIDDEN
#define DLSYM hidden_dlsym
__asm__(".symver hidden_dlsym, dlsym@" VERSION);
#else
#define DLSYM dlsym
#endif
VISIBLE void *DLSYM(void *handle, const char *name);
VISIBLE void *DLSYM(void *handle, const char *name)
{
	void *found = name[0] == 'c' && name[1] == 'u' ? hooked(name) : NULL;

	return found ? found : libcs(handle, name);
}
#endif
