/* What the magics call by ctypes, and any program may: see kernel/startup.py.  */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/describe.h"
#include "base/environment.h"
#include "gate/gate.h"
#include "gate/second_gate.h"
#include "gate/thread_slots.h"
#include "link/link.h"
#include "link/requests.h"
#include "mover/mover.h"
#include "state/controller.h"
#include "state/depth.h"
#include "state/shim_state.h"
#include "state/status_page.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT int affinode_version(char *text, size_t size);
EXPORT int affinode_state(void);
EXPORT int affinode_has_context_depth(void);
EXPORT int affinode_request(int kind, uint64_t argument, uint64_t timeout_ns, char *text, size_t size);
EXPORT int affinode_status_text(char *text, size_t size);
EXPORT int affinode_page_copy(void *buffer, size_t size);
EXPORT void affinode_dying(void);
EXPORT void affinode_cell_began(void);
EXPORT void affinode_taken(void);
EXPORT uint32_t affinode_next_display(uint32_t seen, uint64_t timeout_ns, char *text, size_t size);
EXPORT int affinode_describe(char *text, size_t size);

int affinode_version(char *text, size_t size)
{
	if (!text || !size)
		return -EINVAL;
	snprintf(text, size, "%s", AFFINODE_SHIM_VERSION);
	return 0;
}

/* Whether it was built in; asked for it may be or not.  */
int affinode_has_context_depth(void)
{
	return AFFINODE_CONTEXT_DEPTH;
}

int affinode_state(void)
{
	return (int)shim_state();
}

int affinode_request(int kind, uint64_t argument, uint64_t timeout_ns, char *text, size_t size)
{
	if (text && size)
		text[0] = 0;
	if (kind < AFFINODE_REQUEST_PARK || kind > AFFINODE_REQUEST_STATUS)
		return -EINVAL;
	if (!shim_is_on())
		return -ENODEV;
	return ask_controller((uint32_t)kind, argument, timeout_ns, text, size);
}

int affinode_status_text(char *text, size_t size)
{
	if (!text || !size)
		return -EINVAL;
	link_notice_text(text, size);
	return 0;
}

int affinode_page_copy(void *buffer, size_t size)
{
	return buffer ? (int)page_copy(buffer, size) : -EINVAL;
}

void affinode_dying(void)
{
	shim_set_dying();
}

/* End what an interrupt cancelled, since that was for an earlier cell. The controller says so too (CANCEL_END), but by way of
 * the server, and the next cell may reach the GPU before that.  */
void affinode_cell_began(void)
{
	gate_cancel_end();
}

/* A warm kernel was taken: from now on the process is of the kernel that the environment names, with its user's grant. The caller has
 * changed the environment, and no thread changes it meanwhile.  */
void affinode_taken(void)
{
	if (!shim_is_on())
		return; /* it notes the environment when it begins */
	environment_note();
	link_introduce_again();
}

uint32_t affinode_next_display(uint32_t seen, uint64_t timeout_ns, char *text, size_t size)
{
	return text && size ? link_next_display(seen, timeout_ns, text, size) : seen;
}

static const char *state_name(enum affinode_state state)
{
	static const char *const names[] = {"none", "resident", "parking", "parked", "queued", "resuming", "lost"};

	return state < sizeof(names) / sizeof(names[0]) ? names[state] : "?";
}

static const char *class_name(unsigned class_)
{
	static const char *const names[AFFINODE_CLASSES] = {
		[AFFINODE_CLASS_HOST] = "host",	    [AFFINODE_CLASS_QUERY] = "query", [AFFINODE_CLASS_FREE] = "free",
		[AFFINODE_CLASS_LAUNCH] = "launch", [AFFINODE_CLASS_COPY] = "copy",   [AFFINODE_CLASS_ALLOC] = "alloc",
		[AFFINODE_CLASS_SYNC] = "sync",	    [AFFINODE_CLASS_MODULE] = "module",
	};

	return class_ < AFFINODE_CLASSES && names[class_] ? names[class_] : "?";
}

static int describe_slots(char *text, size_t size, int at)
{
	for (struct slot *slot = slots_first(); slot; slot = slot->next) {
		unsigned inside = atomic_load(&slot->inside), waiting = atomic_load(&slot->waiting);
		unsigned books = atomic_load(&slot->books);

		if (!atomic_load(&slot->used) || (!inside && !waiting && !books))
			continue;
		DESCRIBE("thread %d:", (int)atomic_load(&slot->tid));
		if (inside)
			DESCRIBE(" inside a %s call", class_name(inside - 1));
		if (atomic_load(&slot->nested))
			DESCRIBE(", nested %u deep", atomic_load(&slot->nested));
		if (waiting)
			DESCRIBE(" waits at the gate");
		if (books)
			DESCRIBE(" inside the second gate");
		DESCRIBE("\n");
	}
	return at;
}

/* Describe where the process hangs, in lines: its state, the gates, the calls inside and the thread that keeps the mover from
 * working. The text is cut off where the room ends; return the length that it would have. It takes no lock for long, and reads
 * nothing that another thread may be writing.  */
int affinode_describe(char *text, size_t size)
{
	unsigned word = atomic_load(&gate.word);
	int at = 0;

	if (!text || !size)
		return -EINVAL;
	DESCRIBE("shim: %s, %s%s%s%s\n", shim_is_on() ? "on" : "off", state_name(shim_state()),
		 shim_is_unparkable() ? ", never to be parked" : "", atomic_load(&gate.dying) ? ", dying" : "",
		 link_is_connected() ? ", controller there" : ", no controller");
	DESCRIBE("gate: word %#x (%s%s), second gate %s, turns %u, cancels %u, the context is %s the GPU\n", word,
		 word & GATE_CLOSED ? "closed" : "open", word & GATE_FENCED ? ", fenced" : "",
		 books_are_closed() ? "closed" : "open", atomic_load(&gate.turns), atomic_load(&gate.cancels),
		 checkpoint_is_out() ? "off" : "on");
	at = describe_slots(text, size, at);
	return describe_mover(text, size, at);
}

/* Asked by AddressSanitizer's runtime of a program that does not set this itself: what is preloaded comes before that runtime, which would end
 * the program. ASAN_OPTIONS says so, too, but a command may name options of its own there.  */
EXPORT const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
	return "verify_asan_link_order=0";
}
