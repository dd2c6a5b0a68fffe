/* A libcuda.so.1 that does nothing but write down what it is given. The entry points themselves are generated.  */
#include <string.h>

#include "driver.h"

#define CUDA_ERROR_NOT_FOUND 500
#define PER_THREAD_DEFAULT_STREAM 2

static struct recording recordings[MAX_ENTRY_POINTS];
static int init_succeeds;

struct recording *recording_of(unsigned int index)
{
	return &recordings[index];
}

void *recording_address(unsigned int index)
{
	return entry_points[index].function;
}

void recording_let_init_succeed(int succeed)
{
	init_succeeds = succeed;
}

struct recording *driver_called(unsigned int index)
{
	struct recording *recording = &recordings[index];

	recording->calls++;
	recording->size = 0;
	return recording;
}

void driver_took(struct recording *recording, const void *argument, unsigned int size)
{
	memcpy(recording->bytes + recording->size, argument, size);
	recording->size += size;
}

unsigned int driver_init_answer(unsigned int index)
{
	return init_succeeds ? 0 : RECORDING_ANSWER(index);
}

/* The newest version of `symbol` that a caller of that CUDA version may have, as the real driver picks it.  */
static const struct driver_entry_point *pick(const char *symbol, int version, int per_thread)
{
	const struct driver_entry_point *picked = NULL;

	for (const struct driver_entry_point *entry = entry_points; entry->name; entry++)
		if (strcmp(entry->base, symbol) == 0 && entry->per_thread == per_thread && entry->since <= version &&
		    (!picked || entry->since > picked->since))
			picked = entry;
	return picked;
}

unsigned int driver_proc_address(unsigned int index, const char *symbol, void **pfn, int version, uint64_t flags,
				 int *status)
{
	const struct driver_entry_point *found = NULL;

	if (!*symbol) /* called to see its arguments arrive */
		return RECORDING_ANSWER(index);
	if (flags & PER_THREAD_DEFAULT_STREAM)
		found = pick(symbol, version, 1);
	if (!found)
		found = pick(symbol, version, 0);
	*pfn = found ? found->function : NULL;
	if (status)
		*status = found ? 0 : 1;
	return found ? 0 : CUDA_ERROR_NOT_FOUND;
}
