/* Legacy IPC of backed memory between two processes: it works as the driver's own does, and what is shared stays on the GPU
 * while the rest is parked.  */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "ipc_process.h"

#define OTHER_BYTES MiB(4)
#define INVALID_CONTEXT 201

static void shares(const struct process *importer)
{
	CUdeviceptr shared = cuda_block(BYTES, 1), other = cuda_block(OTHER_BYTES, 2), at;
	CUipcMemHandle handle = export_of(shared), inner = export_of(shared + BYTES / 2);
	unsigned char capable = 0;

	CHECK_EQUAL(memcmp(&handle, &inner, sizeof(handle)), 0); /* one a block: importers keep them by their bytes */
	CUDA(PointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, shared));
	CHECK_EQUAL(capable, 1);
	CHECK_EQUAL(cu.IpcOpenMemHandle(&at, handle, 1), INVALID_CONTEXT); /* the maker has it already */
	CHECK_EQUAL(cu.IpcOpenMemHandle(&at, handle, 0), CUDA_ERROR_INVALID_VALUE);

	CHECK_EQUAL(ASK(importer, OPEN, .handle = handle), CUDA_SUCCESS);
	CHECK_EQUAL(ASK(importer, VERIFY, .seed = 1), true);
	CHECK_EQUAL(ASK(importer, ATTRIBUTE, .attribute = CU_POINTER_ATTRIBUTE_RANGE_START_ADDR), 0);
	CHECK_EQUAL(ASK(importer, ATTRIBUTE, .attribute = CU_POINTER_ATTRIBUTE_RANGE_SIZE), BYTES);
	CHECK_EQUAL(ASK(importer, ATTRIBUTE, .attribute = CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE), 0);
	CHECK(ASK(importer, FREE_IT) != CUDA_SUCCESS);
	CHECK(ASK(importer, EXPORT_IT) != CUDA_SUCCESS);
	CHECK_EQUAL(ASK(importer, OPEN_AGAIN, .handle = handle), CUDA_SUCCESS);
	CHECK_EQUAL(ASK(importer, CLOSE), CUDA_SUCCESS);
	CHECK_EQUAL(ASK(importer, ADD, .added = 5), CUDA_SUCCESS);
	CHECK(holds_pattern(shared, BYTES, 1, 5));

	/* Parked, but for what another process can reach.  */
	controller_park();
	CHECK_EQUAL(page_read().gpus[0].parked_bytes, OTHER_BYTES);
	CHECK_EQUAL(page_read().gpus[0].unmovable_bytes[AFFINODE_UNMOVABLE_SHARED], BYTES);
	CHECK_EQUAL(ASK(importer, ADD, .added = 6), CUDA_SUCCESS);
	CHECK_EQUAL(ASK(importer, VERIFY, .seed = 1, .added = 11), true);
	CHECK_EQUAL(ASK(importer, CLOSE), CUDA_SUCCESS);
	CHECK(ASK(importer, CLOSE) != CUDA_SUCCESS);
	CHECK_EQUAL(ASK(importer, OPEN, .handle = handle), CUDA_SUCCESS); /* answered by a parked process too */
	CHECK_EQUAL(ASK(importer, VERIFY, .seed = 1, .added = 11), true);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	CHECK_RESUMES();
	CHECK(holds_pattern(shared, BYTES, 1, 11));
	CHECK(holds_pattern(other, OTHER_BYTES, 2, 0));
	CHECK_EQUAL(ASK(importer, CLOSE), CUDA_SUCCESS);

	/* Freed: the handle is worth nothing, also when the address is used again.  */
	CUDA(MemFree(shared));
	CHECK_EQUAL(ASK(importer, OPEN, .handle = handle), CUDA_ERROR_INVALID_VALUE);
	shared = cuda_block(BYTES, 3);
	CHECK_EQUAL(ASK(importer, OPEN, .handle = handle), CUDA_ERROR_INVALID_VALUE);
	inner = export_of(shared);
	CHECK(memcmp(&handle, &inner, sizeof(handle)) != 0);
	CUDA(MemFree(shared));
	CUDA(MemFree(other));
}

static CUdeviceptr to_be_exported;
static _Atomic int export_result;

static void *export_while_parked(void *handle)
{
	CUDA(CtxSetCurrent(cuda_context));
	atomic_store(&export_result, cu.IpcGetMemHandle(handle, to_be_exported));
	return NULL;
}

/* Asking for a handle of parked memory brings it back first.  */
static void exports_what_was_parked(const struct process *importer)
{
	CUipcMemHandle handle;
	pthread_t thread;

	to_be_exported = cuda_block(BYTES, 6);
	controller_park();
	thread_start(&thread, export_while_parked, &handle);
	PAGE_UNTIL(page.want == 1);
	CHECK_RESUMES();
	thread_join(thread);
	CHECK_EQUAL(atomic_load(&export_result), CUDA_SUCCESS);
	CHECK_EQUAL(ASK(importer, OPEN, .handle = handle), CUDA_SUCCESS);
	CHECK_EQUAL(ASK(importer, VERIFY, .seed = 6), true);
	CHECK_EQUAL(ASK(importer, CLOSE), CUDA_SUCCESS);
	CUDA(MemFree(to_be_exported));
}

/* The other way round: we import, are parked, and the exporter ends; a stopped one is not waited for without end.  */
static void imports(void)
{
	struct process exporter = start_child("child");
	struct told told = ask(&exporter, (struct ask){.what = MAKE_AND_EXPORT});
	CUdeviceptr at, other = cuda_block(OTHER_BYTES, 8), nothing;
	CUipcMemHandle second;
	int status;

	CHECK_EQUAL(told.number, CUDA_SUCCESS);
	second = ask(&exporter, (struct ask){.what = MAKE_AND_EXPORT}).handle;
	CUDA(IpcOpenMemHandle(&at, told.handle, 1));
	CHECK(holds_pattern(at, BYTES, 77, 0));
	controller_park();
	CHECK_EQUAL(page_read().gpus[0].parked_bytes, OTHER_BYTES);
	CHECK_EQUAL(page_read().gpus[0].unmovable_bytes[AFFINODE_UNMOVABLE_SHARED], BYTES);
	CHECK_RESUMES();
	CHECK(holds_pattern(at, BYTES, 77, 0));
	controller_park();
	CUDA(IpcCloseMemHandle(at)); /* at once, also while parked */
	CHECK_EQUAL(page_read().want, 0);
	PAGE_UNTIL(page.gpus[0].unmovable_bytes[AFFINODE_UNMOVABLE_SHARED] == 0);
	CHECK_RESUMES();
	CHECK(cu.IpcCloseMemHandle(at) != CUDA_SUCCESS);

	CHECK_EQUAL(kill(exporter.pid, SIGSTOP), 0);
	CHECK_EQUAL(waitpid(exporter.pid, &status, WUNTRACED), exporter.pid); /* not before all its threads stand */
	CHECK(WIFSTOPPED(status));
	CHECK(cu.IpcOpenMemHandle(&nothing, second, 1) != CUDA_SUCCESS);
	CHECK_EQUAL(kill(exporter.pid, SIGCONT), 0);
	CUDA(IpcOpenMemHandle(&at, second, 1));
	leave(&exporter);
	CHECK(holds_pattern(at, BYTES, 77, 0)); /* ours until we close it */
	CHECK_EQUAL(cu.IpcOpenMemHandle(&nothing, told.handle, 1), CUDA_ERROR_INVALID_VALUE);
	CUDA(IpcCloseMemHandle(at));
	CUDA(MemFree(other));
}

#define MOST_DESCRIPTORS 1000

/* A forked child keeps neither the socket nor the memory.  */
static void children_keep_nothing(void)
{
	static bool open_before[MOST_DESCRIPTORS];
	int before = open_descriptors(), made = 0, kept = 0;
	CUdeviceptr shared;

	for (int fd = 0; fd < MOST_DESCRIPTORS; fd++)
		open_before[fd] = stays_open(fd);
	shared = cuda_block(BYTES, 9);
	export_of(shared);
	made = open_descriptors() - before;
	CHECK(made >= 1);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		for (int fd = 0; fd < MOST_DESCRIPTORS; fd++)
			kept += !open_before[fd] && stays_open(fd);
		_exit(kept == made - 1 ? 0 : 1); /* the simulated driver keeps its own */
	}
	CHECK_EQUAL(child_wait(pid), 0);
	CUDA(MemFree(shared));
	CHECK_EQUAL(open_descriptors(), before);
}

int main(int argc, char **argv)
{
	struct process importer;

	test_begin(argc, argv, 90);
	ipc_child();
	importer = start_child("child");
	cuda_start();
	controller_accept();
	shares(&importer);
	exports_what_was_parked(&importer);
	imports();
	children_keep_nothing();
	leave(&importer);
	return 0;
}
