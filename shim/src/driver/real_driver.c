#include "driver/real_driver.h"

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

static get_proc_address_fn get_proc_address(void)
{
	void *real = atomic_load(&noted_get_proc_address);

	if (!real && atomic_load(&handle_is_noted))
		real = resolve_real(&driver_library, atomic_load(&noted_handle), "cuGetProcAddress_v2");
	return (get_proc_address_fn)real;
}

bool driver_resolve(void)
{
	get_proc_address_fn get = get_proc_address();
	bool complete = true;
	int status;

	if (!get)
		return false;
#define DRIVER_RESOLVE(name, version, parameters)                                                                   \
	do {                                                                                                        \
		void *address = NULL;                                                                               \
		if (get(#name, &address, version, 0, &status) != CUDA_SUCCESS || !address) {                        \
			log_line("the driver has no " #name);                                                       \
			complete = false;                                                                           \
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
	return complete;
}
