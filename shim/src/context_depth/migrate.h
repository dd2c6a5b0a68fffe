/* Context depth: coming back on another GPU than the one that the process left.
 *
 * The driver's Restore takes pairs of GPUs, which must name every GPU of the machine as a permutation, also those that this
 * process does not see (NVIDIA/cuda-checkpoint issue 35; so on H200s with driver 580); it changes the two in question for one
 * another, and the GPU that is gone to must be of the same kind. The process's devices keep their numbers. A process that was woken
 * on another machine comes back the same way: the driver knows it by the GPU that it left.  */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "context_depth/nvml/nvml_probe.h"
#include "gpu/devices.h"

/* Learn which GPUs there are, and let others begin to heed their locks. On the application's thread, at its start, with
 * gpu_memory_start done.  */
void migration_start(void);

/* Take note of the machine's GPUs, of which the process leaves that one. While the driver answers; the rest by the mover, too.  */
void migration_leaves(const uint8_t gpu[16]);

/* The machine has not the GPU that the device left, since the process was woken on another: make the device the one like it that has
 * most free, or, where it is one of this machine already, another that has the bytes needed. If the machine has the GPU that was left,
 * it is that again. NO_REASON, or why there is none.  */
enum reason migration_choose(struct device *device, const uint8_t left[16], uint64_t needed);

/* Look at all GPUs anew: NO_REASON, and *memory is what is free on the one with the UUID `to`; or why the device, which left its GPU as
 * `left`, cannot come back there.  */
enum reason migration_check(const struct device *device, const uint8_t left[16], const uint8_t to[16], uint64_t ns,
			    struct gpu_memory *memory);

/* What Restore is to be called with, after such a look, for going there.  */
void *migration_arguments(const uint8_t left[16], const uint8_t to[16]);

/* Note that Restore has succeeded: the device is that GPU now. Return its UUID, which stays valid.  */
const uint8_t *migration_restored(struct device *device, const uint8_t left[16], const uint8_t to[16]);

/* Once the driver answers again: if it names another of the machine's GPUs, that is where the device is, and this process goes
 * nowhere any more. cuda-python's tests (cuda_core/tests/test_checkpoint.py) allow for drivers that take the pairs and no notice
 * of them.  */
void migration_confirm(struct device *device);
