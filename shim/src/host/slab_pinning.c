/* Slabs and the driver: registered there, the GPU copies from and to them at the speed of its link.  */
#include <stdatomic.h>

#include "driver/real_driver.h"
#include "gpu/contexts.h"
#include "host/slabs_internal.h"

static _Atomic bool registrations_are_old;

void slab_register(struct slab *slab, CUcontext context)
{
	CUresult result;

	if (slab->registered)
		return;
	result = driver.cuMemHostRegister(slab->base, SLAB_BYTES, CU_MEMHOSTREGISTER_PORTABLE);
	if (result == CUDA_SUCCESS || result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
		slab->registered = context;
	else
		slab->refused = true;
}

void slabs_look_at_registrations(void)
{
	if (!atomic_exchange(&registrations_are_old, false))
		return;
	/* The mover alone changes the list. A context of another device may live on, and one that was reset may have come
	 * back under the same handle without the registration: registering again tells, and mends it.  */
	for (struct slab *slab = slabs_first(); slab; slab = slab->next) {
		CUcontext context = slab->registered;

		slab->registered = NULL;
		slab->unpinned = slab->refused = false;
		if (context_known(context) && driver.cuCtxSetCurrent(context) == CUDA_SUCCESS)
			slab_register(slab, context);
	}
}

/* Memory that the driver still has registered must not be unmapped: a copy may be on its way to it, from any context, and the driver
 * may wait for those of its own alone. Registrations end with their context.  */
bool slab_unregister(struct slab *slab)
{
	CUresult result;

	for (struct context *context = contexts_first(); context; context = context->next)
		if (!context_has_copied(context))
			return false;
	if (!context_known(slab->registered)) {
		slab->registered = NULL;
		return true;
	}
	result = driver.cuCtxSetCurrent(slab->registered);
	if (result == CUDA_SUCCESS)
		result = driver.cuMemHostUnregister(slab->base);
	if (result == CUDA_SUCCESS || result == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
		slab->registered = NULL;
	return !slab->registered;
}

void slabs_unregister(bool (*stop)(void))
{
	for (struct slab *slab = slabs_first(); slab && !stop(); slab = slab->next)
		slab->unpinned = slab_unregister(slab);
	driver.cuCtxSetCurrent(NULL);
}

bool slabs_register_some(CUcontext context, size_t most, bool (*stop)(void))
{
	struct slab *slab;
	size_t n = 0;

	slabs_look_at_registrations();
	driver.cuCtxSetCurrent(context);
	for (slab = slabs_first(); slab && n < most && !stop(); slab = slab->next)
		if (slab->used && !slab->registered && !slab->refused && !slab->away) {
			slab_register(slab, context);
			n++;
		}
	driver.cuCtxSetCurrent(NULL);
	return slab != NULL;
}

void slabs_forget_registrations(void)
{
	atomic_store(&registrations_are_old, true);
}
