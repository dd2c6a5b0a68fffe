/* Legacy IPC where others mean harm, come in crowds, or the driver fails: no process gets what was not given to it, and nothing
 * is left over.  */
#include "ipc_process.h"

/* No descriptor of a freed block stays behind, nor what strangers send.  */
static void withstands(const struct process *importer)
{
	CUdeviceptr shared = cuda_block(BYTES, 4);
	CUipcMemHandle handle = export_of(shared);
	int descriptors = open_descriptors();

	CHECK_EQUAL(ASK(importer, FUZZ, .handle = handle), 0);
	CHECK_EQUAL(ASK(importer, SPAM, .handle = handle), FUZZED);
	CHECK_EQUAL(ASK(importer, OPEN, .handle = handle), CUDA_SUCCESS);
	CHECK_EQUAL(ASK(importer, VERIFY, .seed = 4), true);
	CHECK_EQUAL(ASK(importer, CLOSE), CUDA_SUCCESS);
	UNTIL(open_descriptors() <= descriptors); /* the link's thread may have one in its hand */
	for (int i = 0; i < 20; i++) {
		CUdeviceptr at = cuda_block(MiB(2), 5);

		export_of(at);
		CUDA(MemFree(at));
	}
	UNTIL(open_descriptors() <= descriptors);
	CUDA(MemFree(shared));
}

static void opens_in_a_crowd_and_in_need(const struct process *importer)
{
	CUdeviceptr shared = cuda_block(BYTES, 11);
	CUipcMemHandle handle = export_of(shared);
	struct process faulty = start_child("faulty");

	CHECK_EQUAL(ASK(importer, CROWD, .handle = handle), 0);
	CHECK(ASK(&faulty, FAULTS, .handle = handle) == 4);
	leave(&faulty);
	CUDA(MemFree(shared));
}

int main(int argc, char **argv)
{
	struct process importer;

	test_begin(argc, argv, 90);
	ipc_child();
	importer = start_child("child");
	cuda_start();
	controller_accept();
	withstands(&importer);
	opens_in_a_crowd_and_in_need(&importer);
	leave(&importer);
	return 0;
}
