/* A process with nothing that the mover could move leaves the GPU for an image all the same, and its context comes back at its next call. One
 * that cannot leave goes on as before.  */
#include <fcntl.h>
#include <sys/stat.h>

#include "depth.h"
#include "grown_up.h"

#define SMALL ((size_t)4096)

static char image[] = "/var/tmp/aff-nothing-XXXXXX";
static CUdeviceptr small;
static CUcontext primary, made;

static void remove_image(void)
{
	rmdir(image);
}

static void set_away(bool is_away)
{
	char path[64];

	snprintf(path, sizeof(path), "%s/away", image);
	if (is_away)
		close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	else
		CHECK_EQUAL(unlink(path), 0);
}

static struct affinode_reply hibernate(void)
{
	struct affinode_reply reply;

	set_away(true);
	do
		reply = controller_reply(controller_into_image(image));
	while (reply.status == AFFINODE_BUSY); /* this machine is too slow for the mover's patience */
	return reply;
}

/* With what `asks` for it waits, until the controller brings it back.  */
static void sleeps_until(void (*asks)(void), const char *name)
{
	struct affinode_reply reply;
	struct affinode_page page;
	struct call call;

	test_at("%s", name);
	reply = hibernate();
	if (reply.status != AFFINODE_OK)
		test_fail(__FILE__, __LINE__, reply.text, reply.status);
	page = page_read();
	CHECK_EQUAL(page.state, AFFINODE_STATE_PARKED);
	CHECK_EQUAL(page.depth, AFFINODE_DEPTH_CONTEXT);
	CHECK(page.context_bytes > 0);
	CHECK_EQUAL(page.context_gpu, 1);
	CHECK_EQUAL(page.gpus[0].parked_bytes, 0);
	CHECK_EQUAL(gpu_used_bytes(), 0);
	CHECK_EQUAL(gpu_processes(), 0);
	controller_drop();
	set_away(false);
	controller_accept();
	call_begin(&call, asks);
	controller_noticed(AFFINODE_NOTIFY_WANT, NULL);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_QUEUED);
	CHECK(!call_waits(&call) || page_read().depth == AFFINODE_DEPTH_CONTEXT);
	CHECK_RESUMES();
	call_end(&call);
	page = page_read();
	CHECK_EQUAL(page.state, AFFINODE_STATE_RESIDENT);
	CHECK_EQUAL(page.depth, AFFINODE_DEPTH_NONE);
	CHECK_EQUAL(page.context_gpu, 0);
}

static void retain_primary(void)
{
	CUDA(DevicePrimaryCtxRetain(&primary, 0));
}

static void set_primary_and_free_all(void)
{
	CUdeviceptr block;

	CUDA(CtxSetCurrent(primary));
	CUDA(MemAlloc(&block, MiB(8)));
	CUDA(MemFree(block));
}

static void allocate_small(void)
{
	CUDA(CtxSetCurrent(primary));
	CUDA(MemAlloc(&small, SMALL));
	CUDA(MemsetD32(small, 0x1234567, SMALL / 4));
}

static void look_at_small(void)
{
	uint32_t words[SMALL / 4];

	CUDA(CtxSetCurrent(primary));
	CUDA(MemcpyDtoH(words, small, SMALL));
	for (size_t i = 0; i < SMALL / 4; i++)
		CHECK_EQUAL(words[i], 0x1234567);
}

static void create_context(void)
{
	CUDA(CtxCreate(&made, 0, 0));
}

static void use_and_end_context(void)
{
	CUDA(CtxSetCurrent(made));
	CUDA(CtxSynchronize());
	CUDA(CtxDestroy(made));
}

static void refused(const char *because)
{
	struct affinode_reply reply = hibernate();

	CHECK_EQUAL(reply.status, AFFINODE_REFUSED);
	if (!strstr(reply.text, because))
		test_fail(__FILE__, __LINE__, reply.text, reply.status);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_RESIDENT);
	CHECK_EQUAL(page_read().depth, AFFINODE_DEPTH_NONE);
	set_away(false);
}

static void goes_on_where_it_cannot_leave(void)
{
	CUdeviceptr block;
	int fd = gpu_lock_take(NULL);

	test_at("another has the lock");
	refused("another kernel is getting its GPU memory back");
	look_at_small(); /* waits for no controller */
	gpu_lock_leave(fd);

	test_at("a second context");
	CUDA(CtxCreate(&made, 0, 0));
	refused("several CUDA contexts");
	CUDA(CtxDestroy(made));

	test_at("what can be moved is to be parked first");
	CUDA(CtxSetCurrent(primary));
	CUDA(MemAlloc(&block, MiB(8)));
	refused("the GPU is not freed");
	CUDA(MemFree(block));
	look_at_small();
}

/* Nothing is done, and nothing lost.  */
static void a_park_is_so_already(void)
{
	struct affinode_reply reply = park_deep();

	CHECK_EQUAL(reply.status, AFFINODE_NOTHING);
	CHECK(strcmp(reply.text, "no GPU memory that can be moved") == 0);
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_PARK), AFFINODE_NOTHING);
	CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_NOTHING);
}

int main(int argc, char **argv)
{
	test_begin(argc, argv, 100);
	depth_ask();
	CHECK(mkdtemp(image) != NULL);
	atexit(remove_image);
	init_grown_up();
	controller_accept();
	sleeps_until(retain_primary, "no context at all");
	sleeps_until(set_primary_and_free_all, "a primary context that was retained, and nothing else");
	sleeps_until(allocate_small, "all freed again");
	a_park_is_so_already();
	sleeps_until(look_at_small, "small blocks");
	sleeps_until(look_at_small, "once more");
	goes_on_where_it_cannot_leave();
	CUDA(DevicePrimaryCtxReset(0));
	CUDA(CtxSetCurrent(NULL));
	sleeps_until(create_context, "all contexts have ended");
	sleeps_until(use_and_end_context, "a context of the program's own");
	return 0;
}
