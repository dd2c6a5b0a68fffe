/* Parked at context depth the GPU does not know the process; everything comes back right; what only keeps books is answered
 * meanwhile, and the rest asks for the GPU. What the driver's checkpoint does not bear stays at memory depth, and says why.  */
#include "board.h"
#include "depth.h"
#include "grown_up.h"

#define BYTES MiB(64)

static CUdeviceptr block, small;
static CUstream stream;
static CUevent event;

static CUresult (*stream_get_flags)(CUstream, unsigned int *);
static CUresult (*device_total)(size_t *, CUdevice);
static CUresult (*attribute)(int *, int, CUdevice);
static CUresult (*pop)(CUcontext *), (*push)(CUcontext);
static CUresult (*error_name)(CUresult, const char **);
static CUresult (*exchange_mode)(int *);

static void find_functions(void)
{
	*(void **)&stream_get_flags = cuda_symbol("cuStreamGetFlags");
	*(void **)&device_total = cuda_symbol("cuDeviceTotalMem_v2");
	*(void **)&attribute = cuda_symbol("cuDeviceGetAttribute");
	*(void **)&pop = cuda_symbol("cuCtxPopCurrent_v2");
	*(void **)&push = cuda_symbol("cuCtxPushCurrent_v2");
	*(void **)&error_name = cuda_symbol("cuGetErrorName");
	*(void **)&exchange_mode = cuda_symbol("cuThreadExchangeStreamCaptureMode");
}

static void comes_back_right(void)
{
	struct affinode_page page;

	controller_park();
	CHECK(board_registered_bytes() >= (int64_t)BYTES);
	CHECK_RESUMES();
	park_deep_surely();
	CHECK_EQUAL(gpu_used_bytes(), 0);
	CHECK_EQUAL(gpu_processes(), 0);
	CHECK_EQUAL(board_registered_bytes(), 0); /* the driver would pin it all again on the way back */
	page = page_read();
	CHECK_EQUAL(page.state, AFFINODE_STATE_PARKED);
	CHECK_EQUAL(page.gpus[0].parked_bytes, BYTES);
	CHECK_RESUMES();
	CHECK_EQUAL(page_read().depth, AFFINODE_DEPTH_NONE);
	CHECK(holds_pattern(block, BYTES, 31, 0));
	fill_pattern(block, BYTES, 31);
	controller_park(); /* without the flag: no deeper */
	CHECK_EQUAL(page_read().depth, AFFINODE_DEPTH_MEMORY);
	CHECK_EQUAL(gpu_processes(), 1);
	CHECK_RESUMES();
}

/* A person's look at variables, and what frameworks ask before they compute, on a thread of its own.  */
static void *keep_books(void *unused)
{
	CUcontext current = (CUcontext)1;
	CUdeviceptr start = 0;
	size_t free_bytes = 0, total = 0, range = 0, device_bytes = 0;
	int value = 0, type = 0, capturing = 7, mode = 2, attributes[2] = {2, 12};
	void *answers[2] = {&type, &range};
	const char *text = NULL;
	CUdevice device = -1;

	(void)unused;
	CUDA(CtxGetCurrent(&current));
	CHECK(current == NULL);
	CUDA(CtxSetCurrent(cuda_context));
	CUDA(CtxGetCurrent(&current));
	CHECK(current == cuda_context);
	CHECK_EQUAL(push(cuda_context), CUDA_SUCCESS);
	CHECK_EQUAL(pop(&current), CUDA_SUCCESS);
	CHECK(current == cuda_context);
	CUDA(Init(0));
	CUDA(DeviceGetCount(&value));
	CHECK_EQUAL(value, 1);
	CUDA(DeviceGet(&device, 0));
	CHECK_EQUAL(device, 0);
	CHECK_EQUAL(device_total(&device_bytes, 0), CUDA_SUCCESS);
	CHECK_EQUAL(attribute(&value, 75, 0), CUDA_SUCCESS); /* COMPUTE_CAPABILITY_MAJOR */
	CHECK(value > 0);
	CUDA(MemGetInfo(&free_bytes, &total));
	CHECK_EQUAL(total, device_bytes);
	CHECK_EQUAL(free_bytes, total); /* no process is on the GPU */
	CUDA(PointerGetAttribute(&type, 2, block + 5)); /* MEMORY_TYPE: device */
	CHECK_EQUAL(type, 2);
	CUDA(PointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, block + 5));
	CHECK(start == block);
	type = 0;
	CUDA(PointerGetAttributes(2, attributes, answers, block + 5));
	CHECK_EQUAL(type, 2);
	CHECK_EQUAL(range, BYTES);
	CUDA(StreamQuery(stream));
	CUDA(StreamIsCapturing(stream, &capturing));
	CHECK_EQUAL(capturing, 0);
	CUDA(StreamSynchronize(stream));
	CUDA(EventRecord(event, stream));
	CUDA(EventSynchronize(event));
	CHECK_EQUAL(exchange_mode(&mode), CUDA_SUCCESS);
	CHECK_EQUAL(mode, 0);
	CHECK_EQUAL(error_name(2, &text), CUDA_SUCCESS);
	CHECK(strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
	CUDA(MemFree(small));
	CHECK(page_read().depth == AFFINODE_DEPTH_CONTEXT);

	/* No shadow has this one: it waits, and asks for the GPU; and the thread's context is the driver's again.  */
	CHECK_EQUAL(stream_get_flags(stream, (unsigned int *)&value), CUDA_SUCCESS);
	CHECK(page_read().depth != AFFINODE_DEPTH_CONTEXT);
	CUDA(CtxGetCurrent(&current));
	CHECK(current == cuda_context);
	CHECK_EQUAL(exchange_mode(&mode), CUDA_SUCCESS);
	CHECK_EQUAL(mode, 2);
	CHECK_EQUAL(pop(&current), CUDA_SUCCESS);
	CUDA(CtxGetCurrent(&current));
	CHECK(current == NULL);
	CUDA(CtxSetCurrent(cuda_context));
	CHECK(holds_pattern(block, BYTES, 31, 0));
	return NULL;
}

static void answers_meanwhile(void)
{
	pthread_t thread;
	int type;

	CUDA(MemAlloc(&small, 4096));
	CUDA(PointerGetAttribute(&type, 2, small));
	park_deep_surely();
	thread_start(&thread, keep_books, NULL);
	controller_noticed(AFFINODE_NOTIFY_WANT, NULL);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_QUEUED);
	CHECK_RESUMES();
	thread_join(thread);
	CHECK(cu.PointerGetAttribute(&type, 2, small) != CUDA_SUCCESS); /* the free that was put off was made */
}

/* The thread that last used its context before the process was parked launches next: nothing was changed, nothing waits
 * but the launch.  */
static void *launch(void *unused)
{
	(void)unused;
	CUDA(CtxSetCurrent(cuda_context));
	CHECK_EQUAL(launch_add(NULL, block, BYTES, 1), CUDA_SUCCESS);
	CHECK_EQUAL(launch_add(NULL, block, BYTES, (uint32_t)-1), CUDA_SUCCESS);
	CUDA(CtxSynchronize());
	return NULL;
}

static void a_launch_brings_it_back(void)
{
	pthread_t thread;

	park_deep_surely();
	thread_start(&thread, launch, NULL);
	controller_noticed(AFFINODE_NOTIFY_WANT, NULL);
	CHECK_RESUMES();
	thread_join(thread);
	CHECK(holds_pattern(block, BYTES, 31, 0));
}

static void refused(const char *because)
{
	park_no_deeper(because);
	CHECK_RESUMES();
	CHECK(holds_pattern(block, BYTES, 31, 0));
}

/* Known to the shim, it is not even tried; not known (it came by a private table), the driver refuses and is unlocked.  */
static void managed_memory(void)
{
	CUdeviceptr managed;

	CUDA(MemAllocManaged(&managed, MiB(2), 1));
	refused("managed memory");
	CUDA(MemFree(managed));
	park_deep_surely();
	CHECK_RESUMES();
}

static void managed_memory_unseen(void)
{
	CUresult (*allocate)(CUdeviceptr *, size_t, unsigned int);
	CUdeviceptr managed;

	*(void **)&allocate = cuda_hidden("cuMemAllocManaged");
	CHECK_EQUAL(allocate(&managed, MiB(2), 1), CUDA_SUCCESS);
	refused("does not checkpoint");
	CUDA(MemFree(managed));
}

static void the_lock_is_somebody_elses(void)
{
	int fd = gpu_lock_take(NULL);

	park_no_deeper("another kernel is getting its GPU memory back");
	gpu_lock_leave(fd);
	CHECK_RESUMES();
}

static void second_context(void)
{
	CUcontext other, popped;
	CUdeviceptr there;

	CUDA(CtxCreate(&other, 0, 0));
	CUDA(MemAlloc(&there, MiB(2)));
	refused("several CUDA contexts");
	CUDA(MemFree(there));
	CUDA(CtxDestroy(other));
	CUDA(CtxGetCurrent(&popped));
	CHECK(popped == cuda_context);
	park_deep_surely();
	CHECK_RESUMES();
	CHECK(holds_pattern(block, BYTES, 31, 0));
}

/* For good: the handle may be open elsewhere. So is what the driver refused, and only one of the two can be tried.  */
static void shared_memory(void)
{
	CUdeviceptr at;
	CUipcMemHandle handle;

	CUDA(MemAlloc(&at, test_seed & 4 ? 4096 : MiB(2))); /* the driver's, or backed */
	CUDA(IpcGetMemHandle(&handle, at));
	refused("shares GPU memory");
	CUDA(MemFree(at));
	refused("shares GPU memory");
}

/* Another process has the lock and needs its room: an allocation waits for it.  */
static void *allocate(void *unused)
{
	CUdeviceptr at;

	(void)unused;
	CUDA(CtxSetCurrent(cuda_context));
	CUDA(MemAlloc(&at, MiB(8)));
	CUDA(MemFree(at));
	return NULL;
}

static void allocations_heed_the_lock(void)
{
	uint64_t used = gpu_used_bytes();
	pthread_t thread;
	int fd = gpu_lock_take(NULL);

	thread_start(&thread, allocate, NULL);
	PAGE_UNTIL(page.calls_in_flight == 1);
	CHECK_EQUAL(gpu_used_bytes(), used);
	gpu_lock_leave(fd);
	thread_join(thread);
	CHECK(!gpu_lock_is_taken(NULL)); /* it gave it back */
}

int main(int argc, char **argv)
{
	test_begin(argc, argv, 100);
	depth_ask();
	board_make();
	cuda_start_grown_up();
	find_functions();
	controller_accept();
	CUDA(MemAlloc(&block, BYTES));
	CUDA(StreamCreate(&stream, 1));
	CUDA(EventCreate(&event, 0));
	fill_pattern(block, BYTES, 31);
	comes_back_right();
	answers_meanwhile();
	a_launch_brings_it_back();
	allocations_heed_the_lock();
	managed_memory();
	the_lock_is_somebody_elses();
	second_context();
	if (test_seed % 2)
		shared_memory();
	else
		managed_memory_unseen();
	return 0;
}
