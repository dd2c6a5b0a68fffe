/* A warm kernel is taken: its process says HELLO anew, by its new kernel's name and with the same page. Parked it stays parked.  */
#include <dlfcn.h>

#include "harness.h"

#define BYTES MiB(8)

#ifdef SHIM_LINKED
void affinode_taken(void);
#endif

static void (*find_taken(void))(void)
{
#ifdef SHIM_LINKED
	return affinode_taken;
#else
	void (*found)(void);

	*(void **)&found = dlsym(RTLD_DEFAULT, "affinode_taken");
	return found;
#endif
}

int main(int argc, char **argv)
{
	void (*taken)(void);
	CUdeviceptr block;

	setenv("AFFINODE_KERNEL_ID", "warm", 1);
	test_begin(argc, argv, 60);
	taken = find_taken();
	CHECK(taken);
	taken(); /* before the shim has begun it does nothing */
	cuda_start();
	controller_accept();
	CHECK(strcmp(controller_hello().kernel_id, "warm") == 0);
	block = cuda_block(BYTES, 7);
	controller_park();

	setenv("AFFINODE_KERNEL_ID", "taken", 1);
	taken();
	controller_accept();
	CHECK(strcmp(controller_hello().kernel_id, "taken") == 0);
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	CHECK_RESUMES();
	CHECK(holds_pattern(block, BYTES, 7, 0));
	return 0;
}
