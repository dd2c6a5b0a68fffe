/* In a process that the driver holds no call of NVML comes back, so a caller of NVML (PyTorch, to count GPUs) wants the
 * GPU as any other caller, and can be told no, whether it looked the function up or is linked to it. A program that asks every few
 * seconds keeps the context on the GPU while the process lives, and so does a library whose calls may come past us.  */
#include <dlfcn.h>

#include "depth.h"
#include "grown_up.h"

#define BYTES MiB(8)

#ifdef SHIM_LINKED /* the program is the shim */
#define SHIM_IS_LINKED true
#else
#define SHIM_IS_LINKED false
#endif

static int (*nvml_init)(void);
static int (*nvml_count)(unsigned *);
static const char *(*nvml_error_string)(int);
static int (*linked_count)(unsigned *);

static void find_functions(void)
{
	*(void **)&nvml_init = nvml_symbol("nvmlInit_v2");
	*(void **)&nvml_count = nvml_symbol("nvmlDeviceGetCount_v2");
	*(void **)&nvml_error_string = nvml_symbol("nvmlErrorString");
	CHECK(nvml_init && nvml_count && nvml_error_string);
	CHECK(nvml_symbol("nvmlNoSuchFunction") == NULL);
}

/* For itself alone, as Python loads what it imports.  */
static void load_what_is_linked(void)
{
	void *library;

	CHECK(dlsym(RTLD_DEFAULT, "nvmlInit_v2") == NULL || SHIM_IS_LINKED);
	library = dlopen("liblinked_to_nvml.so", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(library != NULL);
	*(void **)&linked_count = dlsym(library, "linked_count");
	CHECK(linked_count != NULL);
}

static void stays_because_of(const char *words)
{
	park_no_deeper(words);
	CHECK_RESUMES();
}

/* What NVML was asked lately is no matter where the process is to end.  */
static void leaves_for_its_image(void)
{
	char image[] = "/var/tmp/aff-image-XXXXXX", command[64];
	unsigned count = 0;

	CHECK_EQUAL(linked_count(&count), 0);
	CHECK(mkdtemp(image) != NULL);
	controller_park();
	CHECK_EQUAL(controller_reply(controller_into_image(image)).status, AFFINODE_OK);
	CHECK_EQUAL(page_read().depth, AFFINODE_DEPTH_CONTEXT);
	CHECK_RESUMES();
	snprintf(command, sizeof(command), "rm -r %s", image);
	CHECK_EQUAL(system(command), 0);
}

/* The person interrupts: no answer, and nothing else has happened.  */
static void *give_up(void *linked)
{
	unsigned count = 7;

	CHECK_EQUAL(linked ? linked_count(&count) : nvml_init(), 999);
	CHECK_EQUAL(count, 7);
	CHECK_EQUAL(page_read().depth, AFFINODE_DEPTH_CONTEXT);
	return NULL;
}

static void ask_and_give_up(void *linked)
{
	pthread_t thread;

	thread_start(&thread, give_up, linked);
	controller_noticed(AFFINODE_NOTIFY_WANT, NULL);
	controller_command(AFFINODE_COMMAND_CANCEL, 0);
	thread_join(thread);
	PAGE_UNTIL(page.state == AFFINODE_STATE_PARKED);
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
	unsigned count = 0;
	CUdeviceptr block;
	pthread_t thread;

	test_begin(argc, argv, 100);
	depth_ask();
	cuda_start_grown_up();
	controller_accept();
	block = cuda_block(BYTES, 31);

	/* One that is linked, and was never seen to call.  */
	load_what_is_linked();
	stays_because_of("no call of it was seen");
	behind_s = 60;
	CHECK_EQUAL(linked_count(&count), 0);
	behind_s = 0;
	CHECK_EQUAL(count, 1);
	park_deep_surely();
	ask_and_give_up(linked_count);
	CHECK_RESUMES();

	/* One that looks functions up, beside it.  */
	find_functions();
	park_deep_surely();
	ask_and_give_up(linked_count);
	ask_and_give_up(NULL);
	thread_start(&thread, count_gpus, NULL);
	controller_noticed(AFFINODE_NOTIFY_WANT, NULL);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_QUEUED);
	CHECK_RESUMES();
	thread_join(thread);
	stays_because_of("watches the GPU");
	leaves_for_its_image();
	CHECK(holds_pattern(block, BYTES, 31, 0));
	return 0;
}
