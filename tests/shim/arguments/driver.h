/* Between driver.c and the entry points that generate.py writes.  */
#pragma once

#include "recording.h"

#define MAX_ENTRY_POINTS 4096

struct driver_entry_point {
	const char *name, *base;
	int since; /* the driver version since which the base name means this one */
	int per_thread;
	void *function;
};

/* Generated; the last has no name.  */
extern const struct driver_entry_point entry_points[];

struct recording *driver_called(unsigned int index);
void driver_took(struct recording *recording, const void *argument, unsigned int size);
unsigned int driver_init_answer(unsigned int index);
unsigned int driver_proc_address(unsigned int index, const char *symbol, void **pfn, int version, uint64_t flags,
				 int *status);

#define DRIVER_TOOK(recording, argument) driver_took(recording, &(argument), sizeof(argument))
