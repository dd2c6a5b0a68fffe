/* cuGetErrorName and cuGetErrorString: they need no cuInit.  */
#include "driver/api.h"

static const struct error {
	int number;
	const char *name, *words;
} errors[] = {
	{CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
#define ERROR(name, number, words) {number, "CUDA_ERROR_" #name, words},
#include "driver/cuda_errors.h"
};

/* Without texts where there is no such error.  */
static struct error find(CUresult number)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++)
		if (errors[i].number == (int)number)
			return errors[i];
	return (struct error){0};
}

static CUresult answer(const char **text, const char *found)
{
	if (text)
		*text = found;
	return text && found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuGetErrorName(CUresult error, const char **text)
{
	return answer(text, find(error).name);
}

SIM_API CUresult cuGetErrorString(CUresult error, const char **text)
{
	return answer(text, find(error).words);
}
