#include "process/diagnostics.h"

#include <stdatomic.h>

#include "base/describe.h"
#include "gate/gate.h"
#include "gate/second_gate.h"
#include "gate/thread_slots.h"
#include "mover/mover.h"
#include "state/controller.h"
#include "state/depth.h"
#include "state/shim_state.h"

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

int describe(char *text, size_t size)
{
	unsigned word = atomic_load(&gate.word);
	int at = 0;

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
