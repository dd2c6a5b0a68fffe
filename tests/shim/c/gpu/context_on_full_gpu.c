/* A program whose context meets a full GPU waits for room as an allocation does: granted, denied, interrupted; whether it is
 * the primary context or one of its own, by any of the forms that cuCtxCreate has had.  */
#include "harness.h"

static CUdeviceptr filler;
static CUcontext first, primary;
static _Atomic int result;

enum form { PRIMARY, CREATE, CREATE_V3, CREATE_V4, FORMS };
static CUresult (*create_v3)(CUcontext *, void *, int, unsigned int, CUdevice);
static CUresult (*create_v4)(CUcontext *, void *, unsigned int, CUdevice);
static enum form form;

static void *begin(void *unused)
{
	CUcontext context;
	CUresult made;

	switch (form) {
	case PRIMARY:
		made = cu.DevicePrimaryCtxRetain(&primary, 0);
		break;
	case CREATE:
		made = cu.CtxCreate(&context, 0, 0);
		break;
	case CREATE_V3:
		made = create_v3(&context, NULL, 0, 0, 0);
		break;
	default:
		made = create_v4(&context, NULL, 0, 0);
	}
	if (made == CUDA_SUCCESS && form != PRIMARY)
		CUDA(CtxDestroy(context));
	atomic_store(&result, made);
	return unused;
}

static uint32_t begin_on_full_gpu(pthread_t *thread)
{
	uint64_t bytes;
	uint32_t number;

	atomic_store(&result, -1);
	thread_start(thread, begin, NULL);
	number = controller_noticed(AFFINODE_NOTIFY_ROOM, &bytes);
	CHECK(bytes >= MiB(2) && bytes <= MiB(16));
	return number;
}

static void fill(void)
{
	CUDA(CtxSetCurrent(first));
	filler = cuda_fill(0);
}

int main(int argc, char **argv)
{
	pthread_t thread;
	uint32_t number;

	setenv("AFFINODE_SIM_MEMORY", "256MiB", 1);
	setenv("AFFINODE_SIM_CONTEXT", "16MiB", 1);
	test_begin(argc, argv, 40);
	cuda_load();
	CUDA(Init(0));
	CUDA(CtxCreate(&first, 0, 0)); /* beside it, the primary context takes memory of its own */
	controller_accept();
	CUDA(MemAlloc(&filler, MiB(2))); /* what the shim takes for itself is taken then */
	CUDA(MemFree(filler));
	fill();

	*(void **)&create_v3 = cuda_symbol("cuCtxCreate_v3");
	*(void **)&create_v4 = cuda_symbol("cuCtxCreate_v4");

	for (form = 0; form < FORMS; form++) {
		number = begin_on_full_gpu(&thread);
		controller_answer_room(number, false);
		thread_join(thread);
		CHECK_EQUAL(atomic_load(&result), CUDA_ERROR_OUT_OF_MEMORY);

		begin_on_full_gpu(&thread);
		controller_command(AFFINODE_COMMAND_CANCEL, 0);
		thread_join(thread);
		CHECK_EQUAL(atomic_load(&result), CUDA_ERROR_OUT_OF_MEMORY);
	}
	for (form = FORMS; form-- > 0;) { /* the primary one is not given up again: the last */
		number = begin_on_full_gpu(&thread);
		CHECK_EQUAL(atomic_load(&result), -1);
		CUDA(MemFree(filler));
		controller_answer_room(number, true);
		thread_join(thread);
		CHECK_EQUAL(atomic_load(&result), CUDA_SUCCESS);
		if (form != PRIMARY)
			fill();
	}
	CUDA(CtxSetCurrent(primary));
	CUDA(MemAlloc(&filler, MiB(2)));
	return 0;
}
