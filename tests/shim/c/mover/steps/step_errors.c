/* Any one driver call of a park or of a resume fails, once or from then on: the process is resident or parked, with its
 * contents and a reason, the gate is as it must be, and it moves again as soon as the driver works. Nothing is left
 * behind: no memory of the GPU, none of the host.  */
#include "board.h"
#include "contents.h"
#include "harness.h"

#define SLAB ((int64_t)MiB(32)) /* of host memory: slabs.h */
#define SETTLED 24 /* cycles after which the process has all the host memory that it will ever need */

/* NOT_READY: what the shim says to itself when a move is taken back, and a driver may say too.
 * FRESH: without host memory kept from the park before, so that it has to be made and pinned; half of the time it is a
 * lot, and always until a park has taken one. STAGED: what is kept could not be pinned, so that copies go by the ring.  */
enum host { KEPT, FRESH, STAGED };
static const struct fault {
	const char *function, *what, *plus;
	enum host host;
} faults[] = {{"*", "OUT_OF_MEMORY", "", FRESH}, {"*", "NOT_READY", "", KEPT},  {"*", "OUT_OF_MEMORY", "+", KEPT},
	      {"*", "UNKNOWN", "+", FRESH},	 {"*", "UNKNOWN", "", STAGED}, {"*", "OUT_OF_MEMORY", "+", STAGED}};
/* Each fails by itself, too, while all others work.  */
static const char *const functions[] = {
	"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync",
	"cuStreamSynchronize", "cuStreamQuery", "cuCtxSynchronize", "cuCtxSetCurrent", "cuThreadExchangeStreamCaptureMode"};
#define COUNT(array) (sizeof(array) / sizeof(*(array)))

static size_t free_when_resident;
static unsigned cycles, struck, parked_in_lots, staged;

#ifdef SHIM_LINKED /* sanitizers map and keep as they like */
static void host_memory_is_known(void)
{
}
#else
static struct {
	unsigned mappings;
	int64_t unsaid;
	int64_t registered;
} settled;

static unsigned count_mappings(void)
{
	FILE *file = fopen("/proc/self/maps", "re");
	unsigned lines = 0;
	int c;

	CHECK(file != NULL);
	while ((c = getc(file)) != EOF)
		lines += c == '\n';
	fclose(file);
	return lines;
}

/* Resident bytes beside those that the shim says it keeps, slabs and rings.  */
static int64_t unsaid_bytes(void)
{
	FILE *file = fopen("/proc/self/statm", "re");
	unsigned long size, resident;

	CHECK(file != NULL);
	CHECK_EQUAL(fscanf(file, "%lu %lu", &size, &resident), 2);
	fclose(file);
	return (int64_t)resident * sysconf(_SC_PAGESIZE) - (int64_t)page_read().retained_bytes;
}

/* All that is resident and does not belong to the program is said to be kept; nothing of it is lost.  */
static void host_memory_is_known(void)
{
	if (cycles <= SETTLED) {
		int64_t unsaid = unsaid_bytes();

		settled.unsaid = unsaid > settled.unsaid ? unsaid : settled.unsaid;
		settled.mappings = count_mappings();
		settled.registered = board_registered_bytes();
	} else if (cycles % 4 == 0) {
		CHECK(count_mappings() < settled.mappings + 64);
		/* not an unknown one, but for what is just being given back */
		UNTIL((controller_pump(), unsaid_bytes() < settled.unsaid + SLAB - SLAB / 4));
		CHECK(board_registered_bytes() <= settled.registered + 2 * SLAB);
	}
}
#endif

/* While resident: what a move took of the GPU and of the host is given back, or kept and said to be kept.  */
static void nothing_leaks(void)
{
	size_t free_bytes = cuda_free_bytes();
	struct affinode_page page;

	/* What the driver would not release it still has.  */
	if (free_when_resident && !strstr(board_struck(), "cuMemRelease ") && free_bytes != free_when_resident)
		test_fail(__FILE__, __LINE__, "bytes of the GPU leaked", (long)free_when_resident - (long)free_bytes);
	free_when_resident = free_bytes;
	page = page_read();
	CHECK_EQUAL(page.gpus[0].resident_bytes, contents_bytes());
	CHECK_EQUAL(page.gpus[1].resident_bytes, contents_bytes_of_other_gpu());
	CHECK_EQUAL(page.gpus[0].parked_bytes + page.gpus[1].parked_bytes, 0);
	CHECK_EQUAL(page.copy_bytes, 0);
	cycles++;
	host_memory_is_known();
}

static struct affinode_reply move_with_fault(uint32_t command, const struct fault *fault, unsigned nth, unsigned *met)
{
	struct affinode_reply reply;

	do {
		board_arm("%s:%s:%u%s", fault->function, fault->what, nth, fault->plus);
		reply = controller_reply(controller_command(command, 0));
		*met = board_disarm();
	} while (reply.status == AFFINODE_BUSY && !*met); /* this machine is too slow for the mover's patience */
	test_at("%s, %s: %s at call %u%s, status %d %s; struck: %s",
		command == AFFINODE_COMMAND_PARK ? "park" : "resume", fault->function, fault->what, nth, fault->plus, reply.status,
		reply.text, board_struck());
	if (reply.status != AFFINODE_OK && !*met)
		test_fail(__FILE__, __LINE__, "refused without a fault", reply.status);
	if (reply.status != AFFINODE_OK)
		CHECK(reply.text[0] != 0);
	return reply;
}

/* Still parked: a call waits, and is served once the process has been resumed.  */
static void resume_again(void)
{
	struct call call;

	CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
	call_begin(&call, contents_call);
	PAGE_UNTIL(page.want == 1);
	CHECK_RESUMES();
	call_end(&call);
}

/* All host memory has come back before anything is armed: a fault that struck meanwhile would leave a ring with the driver, and
 * counted, for good. Slabs that the driver would not register stay so as long as they are kept.  */
static void refuse_registration(void)
{
	while (board_registered_bytes() || !page_read().retained_bytes) {
		controller_trim();
		board_arm("cuMemHostRegister:OPERATING_SYSTEM:1+");
		controller_park();
		CHECK_RESUMES();
		CHECK(board_disarm() > 0);
		staged++;
	}
}

/* They are kept: here already, so that all of their pages have been touched before anything is counted.  */
static void use_rings(void)
{
	refuse_registration();
	for (int i = 0; i < 8; i++) {
		controller_park();
		CHECK_RESUMES();
	}
}

/* Park and resume with the fault in one of the two; whether it was met.  */
static bool cycle(uint32_t at, const struct fault *fault, unsigned nth)
{
	struct affinode_reply reply;
	unsigned met;

	if (nth % 2) /* else everything is as it was at the last park */
		contents_change_now(CONTENTS_BROKEN);
	if (fault->host == STAGED)
		refuse_registration();
	else if (board_registered_bytes() == 0)
		controller_trim(); /* what is made anew can be pinned */
	if (fault->host == FRESH && at == AFFINODE_COMMAND_PARK) {
		controller_trim();
		CHECK_EQUAL(board_registered_bytes(), 0);
		if (nth % 4 < 2 || !parked_in_lots)
			controller_lend(MiB(32));
	}
	if (at == AFFINODE_COMMAND_PARK) {
		reply = move_with_fault(at, fault, nth, &met);
		if (reply.status == AFFINODE_OK) {
			CHECK_EQUAL(page_read().state, AFFINODE_STATE_PARKED);
			parked_in_lots += page_read().lot_bytes > 0;
			CHECK_RESUMES();
		}
	} else {
		controller_park();
		reply = move_with_fault(at, fault, nth, &met);
		if (reply.status != AFFINODE_OK) {
			if (!strcmp(fault->what, "OUT_OF_MEMORY"))
				CHECK(reply.status == AFFINODE_NO_GPU_ROOM || reply.status == AFFINODE_FAILED);
			resume_again();
		}
	}
	CHECK_EQUAL(page_read().state, AFFINODE_STATE_RESIDENT);
	contents_are_right();
	nothing_leaks();
	struck += met > 0;
	return met > 0;
}

int main(int argc, char **argv)
{
	setenv("AFFINODE_SIM_GPUS", "2", 1);
	contents_begin(argc, argv);
	use_rings();
	for (uint32_t at = AFFINODE_COMMAND_PARK; at <= AFFINODE_COMMAND_RESUME; at++)
		for (unsigned i = 0; i < COUNT(faults); i++)
			AT_EVERY_CALL(cycle(at, &faults[i], nth), "%s, %s%s%s", at == AFFINODE_COMMAND_PARK ? "park" : "resume",
				      faults[i].what, faults[i].plus, faults[i].host == STAGED ? ", staged" : "");
	for (unsigned i = 0; i < COUNT(functions); i++) {
		const struct fault fault = {functions[i], "UNKNOWN", "+", KEPT};
		unsigned before = struck;

		for (uint32_t at = AFFINODE_COMMAND_PARK; at <= AFFINODE_COMMAND_RESUME; at++)
			for (unsigned nth = 1; cycle(at, &fault, nth); nth += 1 + board_stride() / 10)
				;
		CHECK(struck > before);
	}
	printf("%u faults in %u cycles; in lots %u times\n", struck, cycles, parked_in_lots);
	CHECK(parked_in_lots > 0 && staged > 0);
	return 0;
}
