/* The table behind cuGetProcAddress: every name of the driver's (../tools/signatures.tsv), with what the simulator has for it.  */
#pragma once

struct entry {
	const char *name;
	int since;
	void *symbol; /* NULL: the simulator lacks it */
	void *per_thread[2]; /* with the thread's own default stream: the one of either suffix that there is */
};

extern const struct entry entries[];
extern const unsigned entry_count;
