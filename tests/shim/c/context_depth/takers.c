/* Whatever takes much of a GPU's memory waits while another process brings its context back, for which room was seen to be free;
 * what does not take any goes on.  */
#include "depth.h"

typedef struct {
	size_t width, height, depth;
	unsigned int format, channels, flags;
} array_description;

static struct {
	CUresult (*array)(void **, const void *);
	CUresult (*array_3d)(void **, const array_description *);
	CUresult (*destroy_array)(void *);
	CUresult (*set_limit)(int, size_t);
	CUresult (*upload)(CUgraphExec, CUstream);
} more;

static CUstream stream;
static CUgraph graph;
static CUgraphExec exec;
static CUdeviceptr block;

static void make_array(void)
{
	const struct {
		size_t width, height;
		unsigned int format, channels;
	} description = {1024, 1024, 0x20, 4};
	void *array;

	CUDA(CtxSetCurrent(cuda_context));
	CHECK_EQUAL(more.array(&array, &description), CUDA_SUCCESS);
	CHECK_EQUAL(more.destroy_array(array), CUDA_SUCCESS);
}

static void make_array_3d(void)
{
	const array_description description = {256, 256, 16, 0x20, 4, 0};
	void *array;

	CUDA(CtxSetCurrent(cuda_context));
	CHECK_EQUAL(more.array_3d(&array, &description), CUDA_SUCCESS);
	CHECK_EQUAL(more.destroy_array(array), CUDA_SUCCESS);
}

static void set_stack_size(void)
{
	CUDA(CtxSetCurrent(cuda_context));
	CHECK_EQUAL(more.set_limit(0, 2048), CUDA_SUCCESS);
}

/* The simulated driver runs no graphs, but is asked.  */
static void instantiate(void)
{
	CUDA(CtxSetCurrent(cuda_context));
	CHECK_EQUAL(cu.GraphInstantiate(&exec, graph, 0), CUDA_ERROR_NOT_SUPPORTED);
}

static void launch_graph(void)
{
	CUDA(CtxSetCurrent(cuda_context));
	CHECK_EQUAL(cu.GraphLaunch(exec, stream), CUDA_ERROR_NOT_SUPPORTED);
}

static void upload_graph(void)
{
	CUDA(CtxSetCurrent(cuda_context));
	CHECK_EQUAL(more.upload(exec, stream), CUDA_ERROR_NOT_SUPPORTED);
}

static void waits(void (*what)(void), const char *name)
{
	int fd = gpu_lock_take(NULL);
	struct call call;

	test_at("%s", name);
	call_begin(&call, what);
	CHECK(call_waits(&call));
	gpu_lock_leave(fd);
	call_end(&call);
}

static void goes_on(void (*what)(void), const char *name)
{
	int fd = gpu_lock_take(NULL);
	struct call call;

	test_at("%s", name);
	call_begin(&call, what);
	call_end(&call);
	gpu_lock_leave(fd);
}

static void capture(void)
{
	CUDA(StreamBeginCapture(stream, 0));
	CHECK_EQUAL(launch_add(stream, block, 4096, 1), CUDA_SUCCESS);
	CUDA(StreamEndCapture(stream, &graph));
}

/* The simulated driver has no nodes that allocate, and ends the capture; the program has tried.  */
static void capture_an_allocation(void)
{
	CUdeviceptr at;
	CUgraph none;

	CUDA(StreamBeginCapture(stream, 0));
	CHECK(cu.MemAllocAsync(&at, MiB(8), stream) != CUDA_SUCCESS);
	cu.StreamEndCapture(stream, &none);
}

int main(int argc, char **argv)
{
	test_begin(argc, argv, 60);
	depth_ask();
	cuda_start();
	*(void **)&more.array = cuda_symbol("cuArrayCreate_v2");
	*(void **)&more.array_3d = cuda_symbol("cuArray3DCreate_v2");
	*(void **)&more.destroy_array = cuda_symbol("cuArrayDestroy");
	*(void **)&more.set_limit = cuda_symbol("cuCtxSetLimit");
	*(void **)&more.upload = cuda_symbol("cuGraphUpload");
	controller_accept();
	CUDA(MemAlloc(&block, MiB(2)));
	CUDA(StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	capture();
	waits(make_array, "cuArrayCreate");
	waits(make_array_3d, "cuArray3DCreate");
	waits(set_stack_size, "cuCtxSetLimit");
	waits(instantiate, "cuGraphInstantiateWithFlags");
	goes_on(launch_graph, "cuGraphLaunch");
	goes_on(upload_graph, "cuGraphUpload");
	capture_an_allocation();
	waits(launch_graph, "cuGraphLaunch, once there may be graphs that allocate");
	waits(upload_graph, "cuGraphUpload, once there may be graphs that allocate");
	return 0;
}
