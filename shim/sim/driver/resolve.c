/* cuGetProcAddress: which symbol a name means, for the CUDA version that the caller was built for.  */
#include <string.h>

#include "driver/api.h"
#include "driver/entry_table.h"

/* The newest symbol of that name that the version knows; *known: the name exists, whatever the version.  */
static const struct entry *find(const char *name, int version, bool *known)
{
	const struct entry *best = NULL;

	*known = false;
	for (unsigned i = 0; i < entry_count; i++) {
		if (!entries[i].symbol || strcmp(entries[i].name, name))
			continue;
		*known = true;
		if (entries[i].since <= version && (!best || entries[i].since >= best->since))
			best = &entries[i];
	}
	return best;
}

static CUresult resolve(const char *name, void **function, int version, uint64_t flags, int *status)
{
	const struct entry *entry;
	bool known;

	if (!name || !function || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
		return CUDA_ERROR_INVALID_VALUE;
	entry = find(name, version, &known);
	*function = NULL;
	if (status)
		*status = entry	  ? CU_GET_PROC_ADDRESS_SUCCESS
			  : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
				  : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	if (!entry)
		return CUDA_SUCCESS; /* the status and the NULL say it (driver 580) */
	*function = entry->symbol;
	for (int i = 0; i < 2 && flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM; i++)
		if (entry->per_thread[i])
			*function = entry->per_thread[i];
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
	return resolve(name, function, version, flags, NULL);
}

SIM_API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
	return resolve(name, function, version, flags, status);
}

SIM_API CUresult cuGetProcAddress_v2_ptsz(const char *name, void **function, int version, uint64_t flags, int *status)
{
	return resolve(name, function, version, flags ? flags : CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, status);
}
