/* What is known of a driver entry point: entry_points.h, looked up by name.  */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* What is special about a call beyond its class. Which calls have which: shim/tools/entry_points.rules.  */
enum {
	TRAIT_TAKES_BYTES = 1u << 0,      /* memory of the current device, as many bytes as the second argument says */
	TRAIT_TAKES_DESCRIBED = 1u << 1,  /* the same, of the device that the third argument describes */
	TRAIT_TAKES_SOME = 1u << 2,       /* memory of the current device, of unknown size */
	TRAIT_ADDS_NODES = 1u << 3,       /* to a graph, of those that take memory when the graph is launched, or maybe */
	TRAIT_LAUNCHES_GRAPH = 1u << 4,   /* takes some, if there may be such a graph */
	TRAIT_TAKES_CONTEXT = 1u << 5,    /* memory of any device */
	TRAIT_CHANGES_CONTEXTS = 1u << 6, /* makes or destroys one, or changes what threads have current */
	TRAIT_SHARES = 1u << 7,           /* memory with other processes or APIs */
	/* What it gets while the driver holds the process, beside waiting: */
	TRAIT_NEVER_HELD = 1u << 8,
	TRAIT_SYNCHRONISES = 1u << 9,    /* is done at once */
	TRAIT_PAST_THE_GATE = 1u << 10,  /* may come past the gate, although its class waits there */
	TRAIT_HELD_ABOVE = 1u << 11,     /* waits before its hook, and not below it */
	TRAIT_ASKS_FOR_END = 1u << 12,   /* asks whether work has ended */
	TRAIT_MAKES_EVENT = 1u << 13,
	TRAIT_DEFERRABLE = 1u << 14,     /* may be made later */
	TRAIT_SETTLES = 1u << 15,        /* a copy or fill that is not asynchronous by its name */
};

struct entry_point {
	const char *name;
	uint8_t class_;
	bool wide; /* call_signatures.h */
	uint16_t traits;
};

/* NULL: a name that came after the table.  */
const struct entry_point *entry_point(const char *name);

/* Its traits; those of its base name where the table lacks this version.  */
unsigned entry_point_traits(const char *name);
