/* Fault injection by AFFINODE_SIM_FAULTS.  */
#include "faults.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FAULTS 32

struct fault {
	char name[64];
	CUresult error;
	unsigned nth;
	bool onwards;
	unsigned calls;
};

static struct fault faults[MAX_FAULTS];
static unsigned fault_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static CUresult error_named(const char *name)
{
#define ERROR(error, number, text)   \
	if (!strcmp(name, #error))   \
		return (CUresult)number;
#include "errors.h"
	return (CUresult)atoi(name);
}

static void read_faults(void)
{
	const char *given = getenv("AFFINODE_SIM_FAULTS");
	char *text = given ? strdup(given) : NULL, *rest = text, *entry;

	while (rest && (entry = strsep(&rest, ",")) && fault_count < MAX_FAULTS) {
		struct fault *fault = &faults[fault_count];
		char *name = strsep(&entry, ":"), *error = strsep(&entry, ":");

		if (!error || !*name || strlen(name) >= sizeof(fault->name))
			continue;
		strcpy(fault->name, name);
		fault->error = error_named(error);
		fault->nth = entry ? (unsigned)strtoul(entry, NULL, 10) : 1;
		fault->onwards = entry && strchr(entry, '+');
		if (fault->error != CUDA_SUCCESS && fault->nth)
			fault_count++;
	}
	free(text);
}

CUresult faults_next(const char *name)
{
	CUresult result = CUDA_SUCCESS;

	pthread_once(&once, read_faults);
	for (unsigned i = 0; i < fault_count; i++) {
		struct fault *fault = &faults[i];
		unsigned call;

		if (strcmp(fault->name, name))
			continue;
		call = __atomic_add_fetch(&fault->calls, 1, __ATOMIC_RELAXED);
		if (call == fault->nth || (fault->onwards && call > fault->nth))
			result = fault->error;
	}
	return result;
}
