#include "driver/real_driver.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/log.h"
#include "driver/symbol_finder.h"

struct driver driver;

typedef CUresult (*get_proc_address_fn)(const char *, void **, int, unsigned long long, int *);

static _Atomic(void *) noted_get_proc_address;
static _Atomic(void *) noted_handle;
static _Atomic int handle_is_noted;
static _Atomic bool has_company, allocates_by_another;
static bool creates_by_itself;

void driver_note_get_proc_address(void *real)
{
	void *none = NULL;

	atomic_compare_exchange_strong(&noted_get_proc_address, &none, real);
}

void driver_note_handle(void *handle)
{
	int none = 0;

	if (atomic_compare_exchange_strong(&handle_is_noted, &none, 1))
		atomic_store(&noted_handle, handle);
}

void driver_note_company(const char *name)
{
	static const char *const before_blocks[] = {"cuMemAlloc", "cuMemAlloc_v2", "cuMemAllocPitch", "cuMemAllocPitch_v2"};

	atomic_store(&has_company, true);
	for (size_t i = 0; i < sizeof(before_blocks) / sizeof(before_blocks[0]); i++)
		if (strcmp(name, before_blocks[i]) == 0)
			atomic_store(&allocates_by_another, true);
}

bool driver_has_company(void)
{
	return atomic_load(&has_company);
}

bool driver_allocates_by_another(void)
{
	return atomic_load(&allocates_by_another) && creates_by_itself;
}

static get_proc_address_fn get_proc_address(void)
{
	void *real = atomic_load(&noted_get_proc_address);

	if (!real && atomic_load(&handle_is_noted))
		real = resolve_real(&driver_library, atomic_load(&noted_handle), "cuGetProcAddress_v2");
	return (get_proc_address_fn)real;
}

int driver_resolve(void)
{
	get_proc_address_fn get = get_proc_address();
	int status, error = 0;

	if (!get)
		return -ENOSYS;
#define DRIVER_RESOLVE(name, version, parameters)                                                                   \
	do {                                                                                                        \
		void *address = NULL;                                                                               \
		if (get(#name, &address, version, 0, &status) != CUDA_SUCCESS || !address) {                        \
			log_line("the driver has no " #name);                                                       \
			error = -ENOSYS;                                                                            \
		}                                                                                                   \
		memcpy(&driver.name, &address, sizeof(address));                                                    \
	} while (0);
	DRIVER_FUNCTIONS(DRIVER_RESOLVE)
#undef DRIVER_RESOLVE
#define DRIVER_RESOLVE_OPTIONAL(field, name, version, parameters)                                                   \
	do {                                                                                                        \
		void *address = NULL;                                                                               \
		if (get(name, &address, version, 0, &status) != CUDA_SUCCESS)                                       \
			address = NULL;                                                                             \
		memcpy(&driver.field, &address, sizeof(address));                                                   \
	} while (0);
	DRIVER_OPTIONAL(DRIVER_RESOLVE_OPTIONAL)
#undef DRIVER_RESOLVE_OPTIONAL
	creates_by_itself = is_drivers_own((void *)driver.cuMemCreate);
	return error;
}
