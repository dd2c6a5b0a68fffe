/* What calls are answered with while the driver holds the process: what threads have current, what devices are like, that
 * all work is done.  */
#pragma once

#include <stdbool.h>

#include "driver/cuda_types.h"
#include "gate/second_gate.h"

/* An answer that a shadow does not have.  */
#define SHADOW_NONE (-1)

/* A wrapper of `real` that answers from shadows; NULL: none for this name. As hook_for.  */
void *shadow_for(const char *name, int version, void *real);

/* --- what threads have current (shadow_current_context.c) */

/* The calling thread's current context, NULL too; false: not known.  */
bool shadows_current(CUcontext *context);

/* What the driver was seen to do.  */
void shadows_saw_current(CUcontext context);
void shadows_saw_set(CUcontext context);
void shadows_saw_push(CUcontext context);
void shadows_saw_pop(CUcontext context);
void shadows_saw_mode(int mode);

/* What the driver will be told when it lets the thread in again: CUDA_SUCCESS, an error, or SHADOW_NONE.  */
CUresult shadows_set(CUcontext context);
CUresult shadows_push(CUcontext context);
CUresult shadows_pop(CUcontext *context);
CUresult shadows_exchange_mode(int *mode);

/* Tell it what the calling thread owes it (second_gate.h).  */
void shadows_tell_driver(void);

/* Something else than the four calls above changed what is current somewhere.  */
void shadows_forget_contexts(void);

/* --- what devices are like (shadow_devices.c): CUDA_SUCCESS, the driver's error, or SHADOW_NONE */

/* Note what never changes; on the application's thread.  */
void shadow_devices_start(void);

/* Note what is asked of this moment: 0, or -EBUSY if a call has been reading what was noted before for too long. By the mover,
 * before the driver is told to hold the process.  */
int shadow_devices_take(void);

/* What was noted at the start is true of other GPUs now: ask anew at the next shadow_devices_take. By the mover.  */
void shadow_devices_moved(void);
CUresult shadow_device_count(int *count);
CUresult shadow_device_get(CUdevice *device, int ordinal);
CUresult shadow_device_attribute(int *value, int attribute, CUdevice device);
CUresult shadow_device_name(char *name, int size, CUdevice device);
CUresult shadow_device_pci_id(char *name, int size, CUdevice device);
CUresult shadow_device_uuid(void *uuid, CUdevice device);
CUresult shadow_device_total(size_t *bytes, CUdevice device);
CUresult shadow_primary_state(CUdevice device, unsigned int *flags, int *active);
CUresult shadow_driver_version(int *version);
CUresult shadow_error_text(CUresult error, const char **text, bool name);
CUresult shadow_memory_info(size_t *free_bytes, size_t *total_bytes);
/* One attribute of a context's witness, as cuPointerGetAttribute says it or, of `many`, cuPointerGetAttributes.  */
CUresult shadow_pointer(void *data, int attribute, CUdeviceptr address, bool many);

void shadows_begin_again(void);
