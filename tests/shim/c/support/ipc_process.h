/* Two processes that share memory by legacy IPC: the parent is the test, a child does as it is asked.  */
#pragma once

#include "harness.h"

#define BYTES MiB(6)
#define FUZZED 400

/* What the parent asks of a child, over two descriptors; each is answered with one number.  */
enum what { OPEN, OPEN_AGAIN, CLOSE, FREE_IT, ADD, VERIFY, ATTRIBUTE, EXPORT_IT, FUZZ, SPAM, CROWD, FAULTS,
	    MAKE_AND_EXPORT, LEAVE };
struct ask {
	enum what what;
	CUipcMemHandle handle;
	uint32_t seed, added;
	int attribute;
};
struct told {
	long number;
	CUipcMemHandle handle;
};

struct process {
	pid_t pid;
	int talk;
};

/* Be a child and end, where that is this process's role.  */
void ipc_child(void);

/* Role "child", or "faulty": one whose driver can be told to fail.  */
struct process start_child(const char *role);
struct told ask(const struct process *process, struct ask question);
#define ASK(process, asked, ...) ask(process, (struct ask){.what = asked, ##__VA_ARGS__}).number

void leave(const struct process *process);

/* Of this process.  */
bool stays_open(int fd);
int open_descriptors(void);

/* The IPC handle of a block.  */
CUipcMemHandle export_of(CUdeviceptr at);
