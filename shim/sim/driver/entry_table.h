/* The table behind cuGetProcAddress, made of entries.h.  */
#ifndef SIM_ENTRY_TABLE_H
#define SIM_ENTRY_TABLE_H

struct entry {
	const char *name;
	int since;
	void *symbol, *per_thread;
};

extern const struct entry entries[];
extern const unsigned entry_count;

#endif
