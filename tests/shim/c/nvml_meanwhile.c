/* In a process that the driver holds no call of NVML comes back, so whoever asks NVML (PyTorch does, to count GPUs) wants the
 * GPU as any other caller, and can be told no. Who asks every few seconds keeps the context on the GPU.  */
#include "depth.h"

#define BYTES MiB(8)

static int (*nvml_init)(void);
static int (*nvml_count)(unsigned *);
static const char *(*nvml_error_string)(int);

static void find_functions(void)
{
	*(void **)&nvml_init = nvml_symbol("nvmlInit_v2");
	*(void **)&nvml_count = nvml_symbol("nvmlDeviceGetCount_v2");
	*(void **)&nvml_error_string = nvml_symbol("nvmlErrorString");
	CHECK(nvml_init && nvml_count && nvml_error_string);
	CHECK(nvml_symbol("nvmlNoSuchFunction") == NULL);
}

/* The person interrupts: no answer, and nothing else has happened.  */
static void *give_up(void *unused)
{
	(void)unused;
	CHECK_EQUAL(nvml_init(), 999);
	CHECK_EQUAL(page_read().depth, AFFINODE_DEPTH_CONTEXT);
	return NULL;
}

static void *count_gpus(void *unused)
{
	unsigned count = 0;

	(void)unused;
	CHECK(strcmp(nvml_error_string(0), "Success") == 0);
	CHECK_EQUAL(page_read().depth, AFFINODE_DEPTH_CONTEXT);
	CHECK_EQUAL(nvml_init(), 0);
	CHECK_EQUAL(nvml_count(&count), 0);
	CHECK_EQUAL(count, 1);
	return NULL;
}

int main(int argc, char **argv)
{
	struct affinode_reply reply;
	CUdeviceptr block;
	pthread_t thread;

	test_begin(argc, argv, 100);
	depth_ask();
	cuda_start();
	find_functions();
	controller_accept();
	CUDA(MemAlloc(&block, BYTES));
	CHECK_EQUAL(launch_pattern(NULL, block, BYTES, 31), CUDA_SUCCESS);
	CUDA(CtxSynchronize());
	park_deep_surely();
	thread_start(&thread, give_up, NULL);
	controller_noticed(AFFINODE_NOTIFY_WANT, NULL);
	controller_command(AFFINODE_COMMAND_CANCEL, 0);
	thread_join(thread);
	PAGE_UNTIL(page.state == AFFINODE_STATE_PARKED);
	thread_start(&thread, count_gpus, NULL);
	controller_noticed(AFFINODE_NOTIFY_WANT, NULL);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_QUEUED);
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_OK);
	thread_join(thread);
	reply = park_deep();
	CHECK_EQUAL(reply.status, AFFINODE_OK);
	CHECK_EQUAL(page_read().depth, AFFINODE_DEPTH_MEMORY);
	CHECK(strstr(reply.text, "NVML") != NULL);
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_OK);
	CHECK(holds_pattern(block, BYTES, 31, 0));
	return 0;
}
