/* The tables behind app_mappings.h: allocations by handle, aliases by address. Expandable segments make many thousands of
 * both, so neither is ever walked to find one. Everything here is called with `mappings_lock` held.  */
#pragma once

#include <pthread.h>

#include "memory/app_mappings/app_mappings.h"

extern pthread_mutex_t mappings_lock;

/* All of them, in no order that means anything; NULL after the last.  */
struct mapping *mappings_nth(size_t n);

/* Give it a handle of ours, and remember it: 0, or -ENOMEM. Take it out again.  */
int table_add_mapping(struct mapping *mapping);
void table_remove_mapping(struct mapping *mapping);
struct mapping *table_find_handle(CUmemGenericAllocationHandle handle);

/* A new alias, remembered; NULL: no memory. Taken out and freed.  */
struct alias *table_add_alias(struct mapping *mapping, CUdeviceptr address, size_t size);
void table_remove_alias(struct alias *alias);

/* The alias that contains `address`, and the first one that overlaps a range; NULL: none. Aliases never overlap.  */
struct alias *table_find_alias(CUdeviceptr address);
struct alias *table_first_alias(CUdeviceptr address, size_t size);
/* The next one in that range: its address is not in it yet.  */
struct alias *table_next_alias(const struct alias *alias, CUdeviceptr address, size_t size);
