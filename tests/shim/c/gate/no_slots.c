/* There is no memory for a thread's slot: its call waits for the parked process like any other, and from then on the process
 * is not parked any more, since it cannot be seen which threads are inside.  */
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "gate/gate.h"
#include "harness.h"

#define THREADS 40 /* more than have a slot already */

static _Atomic bool no_memory, may_call;
static _Atomic pid_t threads[THREADS];
static _Atomic bool called[THREADS];
static CUdeviceptr block;

/* For the shim, too: pages for slots are of a size that nothing else asks for.  */
__attribute__((no_sanitize("thread", "address"))) void *mmap(void *at, size_t bytes, int protection, int flags, int fd,
							      off_t offset)
{
	if (atomic_load(&no_memory) && bytes == 32 * sizeof(struct slot)) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}

static void *call(void *number)
{
	size_t i = (size_t)(uintptr_t)number;

	atomic_store(&threads[i], (pid_t)syscall(SYS_gettid));
	CUDA(CtxSetCurrent(cuda_context));
	UNTIL(atomic_load(&may_call));
	CHECK_EQUAL(launch_add(NULL, block, MiB(2), 1), CUDA_SUCCESS);
	atomic_store(&called[i], true);
	return NULL;
}

int main(int argc, char **argv)
{
	struct affinode_reply reply;
	pthread_t thread[THREADS];

	cuda_begin(argc, argv, 60);
	block = cuda_block(MiB(2), 3);
	for (size_t i = 0; i < THREADS; i++) {
		thread_start(&thread[i], call, (void *)(uintptr_t)i);
		UNTIL(atomic_load(&threads[i]));
	}
	controller_park();
	atomic_store(&no_memory, true);
	atomic_store(&may_call, true);
	for (size_t i = 0; i < THREADS; i++)
		CHECK(!thread_waits_or(atomic_load(&threads[i]), &called[i]));
	PAGE_UNTIL(page.want >= 30 && page.flags & AFFINODE_PAGE_UNPARKABLE);
	CHECK_RESUMES();
	for (size_t i = 0; i < THREADS; i++)
		thread_join(thread[i]);
	CUDA(CtxSynchronize());
	CHECK(holds_pattern(block, MiB(2), 3, THREADS));
	reply = controller_reply(controller_command(AFFINODE_COMMAND_PARK, 0));
	CHECK_EQUAL(reply.status, AFFINODE_FAILED);
	CHECK(strstr(reply.text, "cannot be moved") != NULL);
	return 0;
}
