#include "gpu/context_errors.h"

#include <stdatomic.h>
#include <stdio.h>

#include "base/log.h"
#include "base/per_process.h"
#include "driver/real_driver.h"
#include "gate/gate.h"
#include "gpu/contexts.h"
#include "state/status_page.h"

/* As cuda.h says of them: "leaves the process in an inconsistent state and any further CUDA work will return the same error",
 * or the context "cannot be used".  */
static const struct {
	int error;
	const char *name;
} lasting[] = {
	{214, "CUDA_ERROR_ECC_UNCORRECTABLE"},	 {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE"},
	{226, "CUDA_ERROR_CONTAINED"},		 {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
	{702, "CUDA_ERROR_LAUNCH_TIMEOUT"},	 {710, "CUDA_ERROR_ASSERT"},
	{714, "CUDA_ERROR_HARDWARE_STACK_ERROR"}, {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION"},
	{716, "CUDA_ERROR_MISALIGNED_ADDRESS"},	 {717, "CUDA_ERROR_INVALID_ADDRESS_SPACE"},
	{718, "CUDA_ERROR_INVALID_PC"},		 {719, "CUDA_ERROR_LAUNCH_FAILED"},
	{721, "CUDA_ERROR_TENSOR_MEMORY_LEAK"},
};

static OF_PROCESS _Atomic int broken_error; /* CUDA_SUCCESS: none */

static const char *name_of(int error)
{
	for (size_t i = 0; i < sizeof(lasting) / sizeof(lasting[0]); i++)
		if (lasting[i].error == error)
			return lasting[i].name;
	return NULL;
}

static bool lasts(CUresult error)
{
	return name_of(error) != NULL;
}

CUresult broken_look(void)
{
	CUresult error = contexts_error(lasts);

	if (error != CUDA_SUCCESS && atomic_exchange(&broken_error, error) == CUDA_SUCCESS) {
		page_set_flags(AFFINODE_PAGE_UNPARKABLE, 0);
		log_line("a CUDA context has failed: error %d", error);
	}
	return error;
}

void broken_text(char *text, size_t size)
{
	int error = atomic_load(&broken_error);

	snprintf(text, size, "its CUDA context has failed with error %d (%s): nothing can be moved until the kernel is restarted",
		 error, name_of(error) ? name_of(error) : "?");
}
